/* What the commands of s2s-ckpt share. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/ckpt/ckpt.h"
#include "lib/io/printout.h"

/* The ranks of this launch; NULL before ckpt_launch. */
extern struct s2s_mesh *ckpt_mesh;

/* Collective; each command's first call. Ranks past the first are quiet from here on. */
int ckpt_launch(const struct s2s_common *common, struct s2s_error *err);
/* Rank 0, which alone speaks and renames, and does what is not shared. */
bool ckpt_is_first(void);
/* The first failure of any rank, on all of them. */
int ckpt_agree(int rc, struct s2s_error *err);
/* What a signal interrupted ends of that signal, once all is cleaned up: a loop of the shell goes
 * on after a program that merely failed. */
void ckpt_end_as_signalled(int rc);

int ckpt_ls(int argc, char **argv, struct s2s_error *err);
int ckpt_prune(int argc, char **argv, struct s2s_error *err);
int ckpt_reshard(int argc, char **argv, struct s2s_error *err);
int ckpt_average(int argc, char **argv, struct s2s_error *err);
int ckpt_diff(int argc, char **argv, struct s2s_error *err);
int ckpt_cat(int argc, char **argv, struct s2s_error *err);
int ckpt_verify(int argc, char **argv, struct s2s_error *err);
int ckpt_convert(int argc, char **argv, struct s2s_error *err);

/* The argument parser of a command whose only argument is PATH. */
error_t ckpt_parse_path(const char **path, int key, char *arg, struct argp_state *state);

/* ARG: the output would be a file of the checkpoint. out: NULL, or the path. */
int ckpt_check_out(const char *out, const struct s2s_ckpt *ckpt, struct s2s_error *err);
/* -o of a command that prints. */
int ckpt_report_begin(struct s2s_printout *to, const struct s2s_common *common,
                      const struct s2s_ckpt *ckpt, struct s2s_error *err);

/* Of all tensors, as they are read. */
int64_t ckpt_tensor_bytes(const struct s2s_ckpt *ckpt);
/* Before each line of a report: a progress line that stands on the same terminal goes. */
void ckpt_make_way(struct s2s_progress *progress);
/* "1.7 GB" into text; returns text */
const char *ckpt_bytes_text(char text[32], int64_t bytes);
/* "[2, 3]" */
void ckpt_print_shape(const int64_t *shape, int n_dims);
/* A JSON string with its quotes, on stdout. */
void ckpt_print_json_text(const char *text);
/* The text as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. Gives: free. */
char *ckpt_json_text(const char *text);
/* To stdout; what lib/base/utf8.h shows as text so, and backslashes doubled. */
void ckpt_print_name(const char *name);
/* A row of a list, whose end is the caller's: name, dtype, shape, bytes between tabs, or an object.
 * folder: "", or where the tensor is written. */
void ckpt_print_tensor(const struct s2s_ckpt_tensor *t, const char *folder, bool json);

#endif
