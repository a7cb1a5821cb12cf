/* `s2s-pack tokenize`: lines of text to lines of ids and back. */
#ifndef TOOLS_PACK_TOKENIZE_H
#define TOOLS_PACK_TOKENIZE_H

struct s2s_error;

/* Parses its own command line (argv[0] is the subcommand's name) and does the work. */
int pack_tokenize(int argc, char **argv, struct s2s_error *err);

#endif
