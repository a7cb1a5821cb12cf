/* Shared by the commands of s2s-ckpt. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/ckpt/ckpt.h"
#include "lib/io/printout.h"

/* The ranks of this launch; NULL before ckpt_launch. */
extern struct s2s_mesh *ckpt_mesh;

/* Collective, the first call of each command: joins the ranks of the launch. From then on only rank
 * 0 logs, and warnings are kept if a report or rank 0 wants them. COMM. */
int ckpt_launch(const struct s2s_common *common, struct s2s_error *err);
/* Is this rank 0? Only rank 0 prints, renames, and does what is not distributed. */
bool ckpt_is_first(void);
/* Collective: agrees on a result. 0 if all ranks pass 0; otherwise, on all ranks, the failure of
 * the lowest rank that failed. */
int ckpt_agree(int rc, struct s2s_error *err);
/* If rc says that a signal interrupted the work, ends the program by that signal, after clean-up. A
 * shell loop stops then; it would continue after a program that merely failed. */
void ckpt_end_as_signalled(int rc);

/* ---- what was warned of (warnings.c) ---- */

void ckpt_warnings_begin(void);
/* Collective: rank 0 warns of what only other ranks did. */
void ckpt_warnings_share(void);
/* All warnings as a JSON list of texts. Gives: free. */
char *ckpt_warnings_json(void);
/* Prints "warnings": and that list, the last member of each report. */
void ckpt_print_warnings(void);

int ckpt_ls(int argc, char **argv, struct s2s_error *err);
int ckpt_prune(int argc, char **argv, struct s2s_error *err);
int ckpt_reshard(int argc, char **argv, struct s2s_error *err);
int ckpt_average(int argc, char **argv, struct s2s_error *err);
int ckpt_diff(int argc, char **argv, struct s2s_error *err);
int ckpt_cat(int argc, char **argv, struct s2s_error *err);
int ckpt_verify(int argc, char **argv, struct s2s_error *err);
int ckpt_convert(int argc, char **argv, struct s2s_error *err);

/* For the argp parser of a command with one PATH and no options of its own: sets *path. */
error_t ckpt_parse_path(const char **path, int key, char *arg, struct argp_state *state);

/* ARG: writing to out (NULL: not written) would overwrite a file of the checkpoint. */
int ckpt_check_out(const char *out, const struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Redirects stdout to the file of -o, if given (lib/io/printout.h). ARG as above; OPEN, IO. */
int ckpt_report_begin(struct s2s_printout *to, const struct s2s_common *common,
                      const struct s2s_ckpt *ckpt, struct s2s_error *err);

/* Total bytes of all tensors. */
int64_t ckpt_tensor_bytes(const struct s2s_ckpt *ckpt);
/* To be called before each line of a report: clears the progress line on the terminal. */
void ckpt_make_way(struct s2s_progress *progress);
/* Writes "1.7 GB" into text, and returns text. */
const char *ckpt_bytes_text(char text[32], int64_t bytes);
/* Prints "[2, 3]". */
void ckpt_print_shape(const int64_t *shape, int n_dims);
/* Prints the text as a JSON string with quotes. */
void ckpt_print_json_text(const char *text);
/* The text as a JSON string with quotes; invalid UTF-8 becomes U+FFFD. Gives: free. */
char *ckpt_json_text(const char *text);
/* Prints a name without control sequences: escaped by s2s_utf8_show (lib/base/utf8.h), with
 * backslashes doubled. */
void ckpt_print_name(const char *name);
/* Prints a tensor: name, dtype, shape and bytes, separated by tabs, or a JSON object, without the
 * end of the line. folder: the subfolder of the output that contains it; or "". */
void ckpt_print_tensor(const struct s2s_ckpt_tensor *t, const char *folder, bool json);

#endif
