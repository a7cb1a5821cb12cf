/* Parses lines that are conversations, and lines of text. */
#ifndef S2S_DATA_CONVERSATION_H
#define S2S_DATA_CONVERSATION_H

#include "lib/data/manifest.h"

/*
 * NeMo's multimodal conversation: {"id", "conversations": [{"from": "User", "type": "audio",
 * "value": "clip.wav", "duration": 3.2}, {"from": "Assistant", "type": "text", "value": "hello"}],
 * "custom": {..}}. `from` in small letters is the role; any type but text is sound, perhaps with
 * offset and duration. With a list "images" or a type "image" it is UNSUPPORTED.
 *
 * Each returns 1, 0 for a line that is marked to be skipped (custom._skipme), or FORMAT, which
 * names the key. Where a line has no id it is the line's number.
 */
int s2s_data_parse_conversation(struct s2s_sample *sample, const struct s2s_line *line,
                                const struct s2s_manifest_options *opt, struct s2s_error *err);

/*
 * ShareGPT: {"id", "sound" (or "ori_sound"): "clip.wav", "conversations": [{"from": "human",
 * "value": "<sound> what is said?"}, {"from": "gpt", ..}]}. human is the user, all others the
 * assistant. A turn is split at the first of the placeholders that it has: text, sound, text;
 * text is stripped, and left out if empty. placeholders: a list of strings; NULL: <sound>,
 * <speech>.
 */
int s2s_data_parse_share_gpt(struct s2s_sample *sample, const struct s2s_line *line,
                             const struct s2s_manifest_options *opt, const json_t *placeholders,
                             struct s2s_error *err);

/*
 * What language models are tuned with: {"conversations": [{"from": "User", "value"}, ..],
 * "system"},
 * {"messages": [{"role", "content"}, ..]} where content is a text or a list of parts of type text
 * and audio (with its file under "audio", "path" or "value"), or {"input", "output"}, also called
 * prompt and completion.
 */
int s2s_data_parse_sft(struct s2s_sample *sample, const struct s2s_line *line,
                       const struct s2s_manifest_options *opt, struct s2s_error *err);

/* A pair of lines: a question and its answer, without the white space around them. before
 * [before_len] and a space come before the question; NULL: nothing does. Returns 1, 0 where one of
 * them is empty, or FORMAT. */
int s2s_data_parse_pair(struct s2s_sample *sample, const struct s2s_line *question,
                        const struct s2s_line *answer, const char *before, size_t before_len,
                        struct s2s_error *err);

/* A line of text, as the assistant's only turn; is_json: the one under opt->text_field. */
int s2s_data_parse_text(struct s2s_sample *sample, const struct s2s_line *line, bool is_json,
                        const struct s2s_manifest_options *opt, struct s2s_error *err);

#endif
