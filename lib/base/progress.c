/* Draws the progress line, at most a few times a second. */
#include "lib/base/progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/log.h"

static pthread_mutex_t progress_lock = PTHREAD_MUTEX_INITIALIZER;

double s2s_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int wanted(void)
{
    const char *off = getenv("S2S_NO_PROGRESS");
    if ((off && *off && strcmp(off, "0") != 0) || !s2s_log_on(S2S_LOG_WARN, "progress"))
        return 0;
    return isatty(STDERR_FILENO) ? 2 : s2s_log_on(S2S_LOG_INFO, "progress");
}

static void put(const char *text, int len)
{
    if (write(STDERR_FILENO, text, (size_t)len) < 0)
        return; /* failing to show progress is not an error */
}

static int format_time(char *text, size_t size, double seconds)
{
    int s = (int)(seconds + 0.5);
    return s >= 3600 ? snprintf(text, size, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60)
                     : snprintf(text, size, "%d:%02d", s / 60, s % 60);
}

static const char *bytes_unit(double bytes, double *scale)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;
    for (*scale = 1; bytes / *scale >= 1000 && unit < 5; unit++)
        *scale *= 1000;
    return units[unit];
}

/* "packing: 17/40 samples, 3.1/s", "converting: 1.61/3.22 GB, 412 MB/s" */
static int show_amount(char *line, size_t size, const struct s2s_progress *p, double rate)
{
    if (strcmp(p->unit, "bytes") != 0) {
        int len = snprintf(line, size, "%s: %lld", p->label, (long long)p->done);
        if (p->total > 0)
            len += snprintf(line + len, size - (size_t)len, "/%lld", (long long)p->total);
        return len + snprintf(line + len, size - (size_t)len, " %s, %.3g/s", p->unit, rate);
    }
    double scale, rate_scale;
    const char *unit = bytes_unit((double)(p->total > 0 ? p->total : p->done), &scale);
    const char *rate_unit = bytes_unit(rate, &rate_scale);
    int len = snprintf(line, size, "%s: %.2f", p->label, (double)p->done / scale);
    if (p->total > 0)
        len += snprintf(line + len, size - (size_t)len, "/%.2f", (double)p->total / scale);
    return len + snprintf(line + len, size - (size_t)len, " %s, %.3g %s/s", unit, rate / rate_scale,
                          rate_unit);
}

static void show(struct s2s_progress *p, double now)
{
    char line[400], left[32] = "";
    double elapsed = now - p->start_s, rate = elapsed > 0 ? (double)p->done / elapsed : 0;
    int len = show_amount(line, sizeof line, p, rate);
    if (p->total > p->done && rate > 0) {
        format_time(left, sizeof left, (double)(p->total - p->done) / rate);
        len += snprintf(line + len, sizeof line - (size_t)len, ", %s left", left);
    }
    if (p->note[0])
        len += snprintf(line + len, sizeof line - (size_t)len, ", %s", p->note);
    if (len > (int)sizeof line - 2)
        len = (int)sizeof line - 2;
    if (wanted() == 2) {
        char whole[1024];
        int width = len > p->drawn ? len : p->drawn;
        int n = snprintf(whole, sizeof whole, "\r%-*s", width, line);
        put(whole, n);
        p->drawn = len;
    } else {
        line[len++] = '\n';
        put(line, len);
    }
    p->shown_s = now;
}

void s2s_progress_begin(struct s2s_progress *p, const char *label, const char *unit, int64_t total)
{
    *p = (struct s2s_progress){.label = label, .unit = unit, .total = total};
    p->start_s = p->shown_s = s2s_now_s();
}

void s2s_progress_add(struct s2s_progress *p, int64_t n)
{
    pthread_mutex_lock(&progress_lock);
    p->done += n;
    double now = s2s_now_s();
    int want = now - p->shown_s > 0.2 ? wanted() : 0;
    if (want && now - p->shown_s > (want == 2 ? 0.2 : 10.0))
        show(p, now);
    pthread_mutex_unlock(&progress_lock);
}

void s2s_progress_note(struct s2s_progress *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&progress_lock);
    vsnprintf(p->note, sizeof p->note, fmt, ap);
    pthread_mutex_unlock(&progress_lock);
    va_end(ap);
}

void s2s_progress_end(struct s2s_progress *p)
{
    char blank[512];
    if (!p->drawn)
        return;
    int n = snprintf(blank, sizeof blank, "\r%*s\r", p->drawn, "");
    put(blank, n);
    p->drawn = 0;
}
