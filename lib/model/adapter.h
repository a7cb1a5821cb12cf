/*
 * Adapters of a decoder (lib/nn/lora.h) as files: a PEFT folder, which is adapter_config.json and
 * adapter_model.safetensors, whose names are those of the decoder behind "base_model.model.". The
 * decoder was opened with options.lora; it may be a part of a composite.
 */
#ifndef S2S_MODEL_ADAPTER_H
#define S2S_MODEL_ADAPTER_H

struct s2s_error;
struct s2s_model;

/* Values of the folder that options.lora names; nothing where it names none. NOTFOUND for a tensor
 * that is absent, UNSUPPORTED for one that no map wants. */
int s2s_adapter_load(struct s2s_model *llm, struct s2s_error *err);
/* Writes the two files into the folder dir, which is made. base: what the config names as its base
 * model. All values must be here, as on one rank. */
int s2s_adapter_save(const struct s2s_model *llm, const char *base, const char *dir,
                     struct s2s_error *err);
/* Adds each adapter to its map, in F32. All values must be here. NOMEM. */
int s2s_adapter_merge(struct s2s_model *llm, struct s2s_error *err);

#endif
