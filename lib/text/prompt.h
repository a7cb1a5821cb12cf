/*
 * Prompt formats: how the turns of a conversation become one row of ids with a mask of what is
 * trained on. A format is data, of one of two kinds.
 *
 * A chat template (Jinja), as Hugging Face tokenizers carry them: "chat" is the tokenizer's own,
 * "chat:NAME" a built-in one (llama2, llama3, chatml, gemma, mistral, nemotron, canary), and a file
 * whose name ends in .jinja another. The conversation is one text that is tokenized as a whole; the
 * mask is 1 on the tokens of {% generation %} blocks (lib/text/chat.h says what stands for them
 * where a template has none). Ids and mask are those of transformers' apply_chat_template with
 * return_assistant_tokens_mask (tests/oracle/text/check_chat.py).
 *
 * Templates of roles: a template a role, with the slots |message| and |system|, and |bos| at its
 * start or |eos| at its end for the tokenizer's own ids. Built in: plain, llama2, llama3, qwen
 * (also called chatml), gemma, mistral, nemotron_h. Others are JSON files:
 *
 *     {"name": "mine", "preamble": "<s>", "generation": "A: ",
 *      "roles": {"system": "S: |message|\n", "user": "Q: |message|\n",
 *                "system_and_user": "S: |system|\nQ: |message|\n",
 *                "assistant": "A: |message||eos|"}}
 *
 * preamble stands once in front; system_and_user takes a first system turn together with the user
 * turn behind it; generation is what follows the last turn when the model is to speak.
 *
 * Source of these: PromptFormatter of NeMo: each turn's template is filled and then tokenized as
 * one string without the post-processor's tokens; the mask is 1 on the whole of an assistant turn,
 * header and end-of-turn included.
 *
 * The tokenizer's post-processor never adds to either, and two bos tokens in front are refused.
 */
#ifndef S2S_TEXT_PROMPT_H
#define S2S_TEXT_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/text/tokenizer.h"

struct s2s_prompt;

/* A piece of a turn: text [len] (borrowed), or a clip of audio where text is NULL. */
struct s2s_part {
    const char *text;
    size_t len;
};

/* What a chat template may ask of a turn beside its role and content: {{ message.source_lang }} */
struct s2s_turn_field {
    const char *key, *value;
};

/* Parts are joined by one space, as upstream joins consecutive turns of one role. */
struct s2s_turn {
    const char *role; /* "system", "user", "assistant"; a chat template may know others */
    const struct s2s_part *parts;
    size_t n_parts;
    const struct s2s_turn_field *fields; /* for chat templates alone */
    size_t n_fields;
};

/* What a conversation became. audio_pos[k] is the index in ids of the one placeholder of clip k. */
struct s2s_rendered {
    struct s2s_ids ids;
    uint8_t *loss_mask; /* [ids.len] */
    size_t mask_cap;
    int32_t *audio_pos; /* [n_audio] */
    size_t n_audio, audio_cap;
};

#define S2S_RENDERED_INIT \
    { \
        S2S_IDS_INIT, NULL, 0, NULL, 0, 0 \
    }

void s2s_rendered_release(struct s2s_rendered *rendered);

/*
 * A format by its name, or a file (a name with a slash or a dot). tok is kept and gets the
 * audio tag as a special token; audio_tag NULL takes the one that the tokenizer has (<|audio|>,
 * <|audioplaceholder|>, <audio>, ...) or adds <|audio|>. ARG (unknown name: lists the names), OPEN,
 * FORMAT (names file and key or line), NOTFOUND (a template wants bos or eos, or the tokenizer's
 * chat template, and there is none), UNSUPPORTED.
 */
int s2s_prompt_open(struct s2s_prompt **prompt, const char *name_or_file, struct s2s_tokenizer *tok,
                    const char *audio_tag, struct s2s_error *err);
void s2s_prompt_free(struct s2s_prompt *prompt);

const char *s2s_prompt_name(const struct s2s_prompt *prompt);
int32_t s2s_prompt_audio_id(const struct s2s_prompt *prompt); /* the placeholder's id */
/* XXH3-128 of the format's templates and audio tag (hex, lent): goes into a stream's config. */
const char *s2s_prompt_digest(const struct s2s_prompt *prompt);

/*
 * Renders turns into out (overwritten; release it at the end). With `generate` the text that opens
 * the assistant's turn follows. UNSUPPORTED (a role that the format does not have), ARG (no
 * turn), FORMAT (text that is not UTF-8, or that holds the audio
 * tag itself; two bos tokens in front; a fault of a chat template). Any number of threads.
 */
int s2s_prompt_render(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                      const struct s2s_turn *turns, size_t n_turns, bool generate,
                      struct s2s_error *err);

/* The usual row of a transcript: a system turn (NULL: none), a user turn (context, may be NULL,
 * then one clip) and the answer; answer NULL: up to where the model is to speak. */
int s2s_prompt_render_asr(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                          const char *system, const char *context, const char *answer,
                          struct s2s_error *err);

#endif
