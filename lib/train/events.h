/*
 * TensorBoard event files: records of length, masked CRC-32C of the length, a protobuf Event, and
 * its masked CRC-32C (tensorflow/core/lib/io/record_writer.cc, core/util/event.proto).
 */
#ifndef S2S_TRAIN_EVENTS_H
#define S2S_TRAIN_EVENTS_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;
struct s2s_events;

/* A new file events.out.tfevents.TIME.HOST.PID in dir; points of earlier files at or after
 * first_step are superseded. */
int s2s_events_open(struct s2s_events **events, const char *dir, int64_t first_step,
                    struct s2s_error *err);
/* One event with n scalars. Written through, so that a viewer sees it. */
int s2s_events_add(struct s2s_events *events, int64_t step, const char *const *tags,
                   const float *values, size_t n, struct s2s_error *err);
int s2s_events_close(struct s2s_events *events, struct s2s_error *err); /* NULL is a no-op */

uint32_t s2s_crc32c(const void *bytes, size_t len); /* Castagnoli */

#endif
