/*
 * A real transform of n points is a complex one of n/2 (even samples real, odd imaginary) and a
 * pass that takes the two halves of its spectrum apart (Sorensen et al., "Real-valued fast Fourier
 * transform algorithms", 1987). The complex one is radix 4, decimation in frequency, in place; its
 * outputs lie in digit-reversed order, which costs nothing because the last pass reads them through
 * a table. Twiddles are made in fp64.
 */
#include "lib/audio/fft.h"

#include <math.h>

struct twiddle {
    float re, im;
};

struct audio_fft {
    int n;                  /* complex points */
    struct twiddle *stages; /* three a butterfly of each radix-4 stage, in the order of their use */
    struct twiddle *real;   /* [n/2 + 1], of the last pass */
    int *position;          /* [n], where an output lies */
};

static struct twiddle root(double k, double n)
{
    double angle = -2 * M_PI * k / n;
    return (struct twiddle){(float)cos(angle), (float)sin(angle)};
}

static int position_of(int k, int n, int base)
{
    if (n == 1)
        return base;
    int radix = __builtin_ctz((unsigned)n) % 2 ? 2 : 4;
    return position_of(k / radix, n / radix, base + k % radix * (n / radix));
}

struct audio_fft *audio_fft_new(int n_fft)
{
    struct audio_fft *fft = s2s_xcalloc(1, sizeof *fft);
    int n = fft->n = n_fft / 2;
    size_t used = 0;
    fft->stages = s2s_xcalloc((size_t)n * 2, sizeof *fft->stages);
    fft->real = s2s_xcalloc((size_t)n / 2 + 1, sizeof *fft->real);
    fft->position = s2s_xcalloc((size_t)n, sizeof *fft->position);
    for (int len = n; len > 1;) {
        int radix = __builtin_ctz((unsigned)len) % 2 ? 2 : 4;
        for (int j = 0; j < len / radix; j++)
            for (int r = 1; r < radix; r++)
                fft->stages[used++] = root((double)j * r, len);
        len /= radix;
    }
    for (int k = 0; k <= n / 2; k++)
        fft->real[k] = root(k, n_fft);
    for (int k = 0; k < n; k++)
        fft->position[k] = position_of(k, n, 0);
    return fft;
}

void audio_fft_free(struct audio_fft *fft)
{
    if (!fft)
        return;
    free(fft->stages);
    free(fft->real);
    free(fft->position);
    free(fft);
}

static void stage_2(audio_vec *restrict re, audio_vec *restrict im, int len,
                    const struct twiddle *w)
{
    for (int j = 0; j < len / 2; j++) {
        int k = j + len / 2;
        audio_vec r = re[j] - re[k], i = im[j] - im[k];
        re[j] += re[k];
        im[j] += im[k];
        re[k] = r * w[j].re - i * w[j].im;
        im[k] = r * w[j].im + i * w[j].re;
    }
}

/* Butterflies of all blocks of length len. */
static void stage_4(audio_vec *restrict re, audio_vec *restrict im, int n, int len,
                    const struct twiddle *w)
{
    int q = len / 4;
    for (int j = 0; j < q; j++, w += 3) {
        for (int a = j; a < n; a += len) {
            int b = a + q, c = b + q, d = c + q;
            audio_vec sr = re[a] + re[c], si = im[a] + im[c];
            audio_vec dr = re[a] - re[c], di = im[a] - im[c];
            audio_vec tr = re[b] + re[d], ti = im[b] + im[d];
            audio_vec ur = im[b] - im[d], ui = re[d] - re[b]; /* -i (x_b - x_d) */
            audio_vec r1 = dr + ur, i1 = di + ui, r2 = sr - tr, i2 = si - ti;
            audio_vec r3 = dr - ur, i3 = di - ui;
            re[a] = sr + tr;
            im[a] = si + ti;
            re[b] = r1 * w[0].re - i1 * w[0].im;
            im[b] = r1 * w[0].im + i1 * w[0].re;
            re[c] = r2 * w[1].re - i2 * w[1].im;
            im[c] = r2 * w[1].im + i2 * w[1].re;
            re[d] = r3 * w[2].re - i3 * w[2].im;
            im[d] = r3 * w[2].im + i3 * w[2].re;
        }
    }
}

/* The last stage: all twiddles are 1. */
static void stage_4_last(audio_vec *restrict re, audio_vec *restrict im, int n)
{
    for (int a = 0; a < n; a += 4) {
        audio_vec sr = re[a] + re[a + 2], si = im[a] + im[a + 2];
        audio_vec dr = re[a] - re[a + 2], di = im[a] - im[a + 2];
        audio_vec tr = re[a + 1] + re[a + 3], ti = im[a + 1] + im[a + 3];
        audio_vec ur = im[a + 1] - im[a + 3], ui = re[a + 3] - re[a + 1];
        re[a] = sr + tr;
        im[a] = si + ti;
        re[a + 1] = dr + ur;
        im[a + 1] = di + ui;
        re[a + 2] = sr - tr;
        im[a + 2] = si - ti;
        re[a + 3] = dr - ur;
        im[a + 3] = di - ui;
    }
}

/* |x|^2 through |x|, lane by lane. */
static audio_vec magnitude_squared(audio_vec re, audio_vec im)
{
    audio_vec power = re * re + im * im;
    for (int lane = 0; lane < AUDIO_LANES; lane++)
        power[lane] = sqrtf(power[lane]);
    return power * power;
}

void audio_fft_power(const struct audio_fft *fft, audio_vec *power, audio_vec *re, audio_vec *im)
{
    int n = fft->n, len = n;
    const struct twiddle *w = fft->stages;
    if (__builtin_ctz((unsigned)n) % 2) {
        stage_2(re, im, n, w);
        w += n / 2;
        len /= 2;
    }
    for (; len > 4; len /= 4) {
        stage_4(re, im, n, len, w);
        w += len / 4 * 3;
    }
    stage_4_last(re, im, n);

    /* X_k = E + w O and X_(n-k) = conj(E - w O), with E = (Z_k + conj Z_(n-k)) / 2 and
     * O = (Z_k - conj Z_(n-k)) / 2i */
    audio_vec zero_re = re[0], zero_im = im[0];
    power[0] = magnitude_squared(zero_re + zero_im, zero_re - zero_re);
    power[n] = magnitude_squared(zero_re - zero_im, zero_re - zero_re);
    for (int k = 1; k <= n / 2; k++) {
        int a = fft->position[k], b = fft->position[n - k];
        float wr = 0.5f * fft->real[k].re, wi = 0.5f * fft->real[k].im;
        audio_vec er = 0.5f * (re[a] + re[b]), ei = 0.5f * (im[a] - im[b]);
        audio_vec or = im[a] + im[b], oi = re[b] - re[a];
        audio_vec tr = or *wr - oi * wi, ti = or *wi + oi * wr;
        power[k] = magnitude_squared(er + tr, ei + ti);
        power[n - k] = magnitude_squared(er - tr, ei - ti);
    }
}
