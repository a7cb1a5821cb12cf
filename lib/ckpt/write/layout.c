/* Places tensors and parts of them in .distcp files, before any byte is written. */
#include "lib/ckpt/write/layout.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"

/* upper bound of the overhead of an archive */
enum { ARCHIVE_BYTES = 2 << 10 };

bool ckpt_target_is_flattened(const struct s2s_ckpt_target *target)
{
    const struct s2s_ckpt_tensor *source = s2s_ckpt_target_source(target);
    return source && s2s_ckpt_orig_shape(source) && source->n_dims == target->n_dims;
}

int64_t ckpt_target_rows(const struct s2s_ckpt_target *target, const struct s2s_ckpt_write *how)
{
    /* scalars, empty and flattened tensors are never split */
    bool cut = how->n_files && target->n_dims && s2s_ckpt_target_shape(target)[0] > 0 &&
               !ckpt_target_is_flattened(target);
    return cut ? s2s_ckpt_target_shape(target)[0] : 1;
}

bool ckpt_place_is(const struct ckpt_place *place, size_t target, int64_t row)
{
    return place->target == target && place->row == row;
}

static void begin_file(struct ckpt_layout *layout, size_t *cap, size_t target, int64_t row)
{
    s2s_grow(&layout->start, layout->n_files, cap, sizeof *layout->start);
    layout->start[layout->n_files++] = (struct ckpt_place){target, row};
}

bool ckpt_layout_keeps(const struct s2s_ckpt_write *how, const char *name)
{
    return strcmp(name, CKPT_COMMON_OBJECT) != 0 && (!how->keep_object || how->keep_object(name));
}

static int64_t object_bytes(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < ckpt->n_objects; i++)
        if (ckpt_layout_keeps(how, ckpt->objects[i].name))
            bytes += (ckpt->objects[i].len_bytes > 0 ? ckpt->objects[i].len_bytes
                                                     : (int64_t)ckpt->objects[i].pickle_len) +
                     ARCHIVE_BYTES;
    return bytes;
}

static void whole_tensors(struct ckpt_layout *layout, size_t *cap, const struct s2s_ckpt_plan *plan,
                          const struct s2s_ckpt_write *how)
{
    int64_t held = object_bytes(plan->source, how), most = how->max_shard_bytes;
    for (size_t i = 0; i < plan->n_targets; i++) {
        int64_t bytes = s2s_ckpt_target_bytes(&plan->targets[i]) + ARCHIVE_BYTES;
        if (most > 0 && held > 0 && held + bytes > most) {
            begin_file(layout, cap, i, 0);
            held = 0;
        }
        held += bytes;
    }
}

static void equal_files(struct ckpt_layout *layout, size_t *cap, const struct s2s_ckpt_plan *plan,
                        const struct s2s_ckpt_write *how)
{
    const int64_t n_files = how->n_files;
    int64_t total = 0, done = 0;
    for (size_t i = 0; i < plan->n_targets; i++)
        total += s2s_ckpt_target_bytes(&plan->targets[i]);
    for (size_t i = 0; i < plan->n_targets; i++) {
        int64_t n_rows = ckpt_target_rows(&plan->targets[i], how), rows;
        int64_t row_bytes = s2s_ckpt_target_bytes(&plan->targets[i]) / n_rows;
        for (int64_t row = 0; row < n_rows; row += rows, done += rows * row_bytes) {
            /* file n ends at n / n_files of all bytes, or with the row that crosses it */
            __int128 all = total;
            while ((int64_t)layout->n_files < n_files &&
                   done >= (int64_t)(all * (int64_t)layout->n_files / n_files))
                begin_file(layout, cap, i, row);
            int64_t room = (int64_t)(all * (int64_t)layout->n_files / n_files) - done;
            rows = n_rows - row;
            if (row_bytes > 0 && (int64_t)layout->n_files < n_files &&
                (room + row_bytes - 1) / row_bytes < rows)
                rows = (room + row_bytes - 1) / row_bytes;
        }
    }
}

void ckpt_layout_make(struct ckpt_layout *layout, const struct s2s_ckpt_plan *plan,
                      const struct s2s_ckpt_write *how)
{
    size_t cap = 0;
    *layout = (struct ckpt_layout){.n_files = 0};
    begin_file(layout, &cap, 0, 0);
    if (how->n_files)
        equal_files(layout, &cap, plan, how);
    else
        whole_tensors(layout, &cap, plan, how);
    begin_file(layout, &cap, plan->n_targets, 0);
    layout->n_files--;
}

void ckpt_layout_release(struct ckpt_layout *layout)
{
    free(layout->start);
    *layout = (struct ckpt_layout){.n_files = 0};
}
