/* Conversations through a chat template: one text, its ids, and which of them are learned. */
#ifndef S2S_TEXT_CHAT_H
#define S2S_TEXT_CHAT_H

#include "lib/text/jinja.h"
#include "lib/text/prompt.h"

/* Text of a built-in template, NULL when there is none of this name; lent. */
const char *text_chat_builtin(const char *name);
const char *const *text_chat_names(void); /* NULL-ended */

/*
 * Appends the ids of a conversation to out, and its mask. messages: [{"role", "content", ..}, ..].
 * Where the template has no {% generation %}, what a turn of the assistant adds behind the opening
 * of its turn is learned. Errors as of text_jinja_render and the tokenizer; UNSUPPORTED: a template
 * without {% generation %} whose earlier text changes with later turns.
 */
int text_chat_render(const struct text_jinja *jinja, const struct s2s_tokenizer *tok,
                     struct s2s_rendered *out, json_t *messages, bool generate,
                     struct s2s_error *err);

#endif
