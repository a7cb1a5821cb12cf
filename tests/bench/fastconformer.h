/* The FastConformer of the benches, and what the mathematics of its training step asks for. */
#ifndef BENCH_FASTCONFORMER_H
#define BENCH_FASTCONFORMER_H

#include <stdint.h>

enum { N_MELS = 80, ENCODER_WIDTH = 256 };

/* 26.1 million parameters: 256 wide, 16 blocks, subsampling by 8. */
static const char encoder_config[] =
    "{\"model_type\": \"parakeet_encoder\", \"hidden_size\": 256, \"num_hidden_layers\": 16, "
    "\"num_attention_heads\": 4, \"intermediate_size\": 1024, \"conv_kernel_size\": 9, "
    "\"subsampling_conv_channels\": 256, \"num_mel_bins\": 80}";

/* Multiplications and additions over n clips with these bounds: three times those of the forward
 * pass. */
static inline double encoder_flops(const int64_t *cu, int64_t n)
{
    const double d = ENCODER_WIDTH, c = 256;
    double flops = 0;
    for (int64_t k = 0; k < n; k++) {
        double mel = (double)(cu[k + 1] - cu[k]), t = mel / 8;
        flops += mel / 2 * 40 * c * 18 + mel / 4 * 20 * c * (18 + 2 * c) +
                 t * 10 * c * (18 + 2 * c) + 2 * t * 10 * c * d;
        /* feed-forward, projections, pointwise and depthwise convolution; scores and values */
        flops += 16 * (t * (2 * d * (4 * 1024 + 4 * d + 3 * d) + 18 * d) + 8 * t * t * d);
        flops += 16 * 2 * 2 * t * d * d; /* projected positions */
    }
    return 3 * flops;
}

#endif
