/* What a composite has to know of its RADIO encoder (lib/model/radio.c). */
#ifndef S2S_MODEL_RADIO_H
#define S2S_MODEL_RADIO_H

#include "lib/model/model.h"
#include "lib/nn/patches.h"

/* Class and register tokens in front of each image. */
int64_t model_radio_n_front(const struct s2s_model *model);
double model_radio_eps(const struct s2s_model *model); /* of its norms */
/* The images of the batch that this rank encodes. */
struct s2s_nn_images model_radio_images(const struct s2s_model *model, const struct s2s_pass *pass);

#endif
