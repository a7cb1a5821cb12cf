/* lib/audio/resample against python-soxr (tests/oracle/soxr). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/io/safetensors.h"

static void samples_are_those_of_python_soxr(void **state)
{
    static const int cases[][3] = {{1500, 8000, 16000},  {2205, 44100, 16000}, {2400, 48000, 16000},
                                   {1102, 22050, 16000}, {1601, 16000, 8000},  {7, 44100, 16000}};
    struct s2s_safetensors st;
    assert_int_equal(s2s_safetensors_open(&st, "tests/oracle/soxr/expected.safetensors", NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        int n = cases[i][0], from = cases[i][1], to = cases[i][2];
        snprintf(name, sizeof name, "%d_%d_%d/in", from, to, n);
        const struct s2s_st_tensor *in = s2s_safetensors_find(&st, name);
        snprintf(name, sizeof name, "%d_%d_%d/out", from, to, n);
        const struct s2s_st_tensor *want = s2s_safetensors_find(&st, name);
        int64_t n_out = s2s_audio_n_resampled(n, from, to);
        float *x = s2s_xmalloc(in->len_bytes), *y = s2s_xmalloc((size_t)(n_out + 1) * sizeof *y);
        memcpy(x, in->data, in->len_bytes);
        assert_int_equal(s2s_audio_resample(y, x, (size_t)n, from, to, NULL), 0);
        assert_int_equal(n_out, want->shape[0]);
        for (int64_t k = 0; k < n_out; k++) {
            float expected;
            memcpy(&expected, (const char *)want->data + (size_t)k * sizeof expected,
                   sizeof expected);
            if (!(fabs((double)y[k] - (double)expected) <= 1e-6))
                fail_msg("%s[%d] = %g, not %g", name, (int)k, (double)y[k], (double)expected);
        }
        free(x);
        free(y);
    }
    s2s_safetensors_release(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_those_of_python_soxr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
