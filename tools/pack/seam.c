/* Reads and writes where a run is to go on. */
#include "tools/pack/seam.h"

#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/stream/stream.h"

void pack_seam_add(struct pack_seam *seam, struct pack_spot held)
{
    s2s_grow(&seam->held, seam->n_held, &seam->cap_held, sizeof *seam->held);
    seam->held[seam->n_held++] = held;
}

void pack_seam_release(struct pack_seam *seam)
{
    free(seam->held);
    *seam = (struct pack_seam){.n_held = 0};
}

static bool is_before(struct pack_spot a, struct pack_spot b)
{
    return a.number != b.number ? a.number < b.number : a.variant < b.variant;
}

/* The first held sample that is not before the spot; n_held: none. */
static size_t find(const struct pack_seam *seam, struct pack_spot spot)
{
    size_t low = 0, high = seam->n_held;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (is_before(seam->held[mid], spot))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

bool pack_seam_wants(const struct pack_seam *seam, struct pack_spot spot)
{
    if (!is_before(spot, seam->next))
        return true;
    const size_t at = find(seam, spot);
    return at < seam->n_held && !is_before(spot, seam->held[at]);
}

bool pack_seam_wants_any(const struct pack_seam *seam, uint64_t number)
{
    const size_t at = find(seam, (struct pack_spot){number, 0});
    return number >= seam->next.number || (at < seam->n_held && seam->held[at].number == number);
}

static json_t *spot_json(struct pack_spot spot)
{
    return json_pack("[I, i]", (json_int_t)spot.number, spot.variant);
}

json_t *pack_seam_json(const struct pack_seam *seam)
{
    json_t *held = json_array();
    for (size_t i = 0; i < seam->n_held; i++)
        json_array_append_new(held, spot_json(seam->held[i]));
    return json_pack("{s:o, s:o}", "next", spot_json(seam->next), "held", held);
}

static bool read_spot(struct pack_spot *spot, const json_t *json)
{
    const json_t *number = json_array_get(json, 0), *variant = json_array_get(json, 1);
    if (!json_is_integer(number) || !json_is_integer(variant) || json_integer_value(number) < 0 ||
        json_integer_value(variant) < 0 || json_integer_value(variant) > INT32_MAX)
        return false;
    *spot = (struct pack_spot){(uint64_t)json_integer_value(number),
                               (int32_t)json_integer_value(variant)};
    return true;
}

static bool parse(struct pack_seam *seam, const json_t *json)
{
    const json_t *held = json_object_get(json, "held");
    if (!json_is_array(held) || !read_spot(&seam->next, json_object_get(json, "next")))
        return false;
    for (size_t i = 0; i < json_array_size(held); i++) {
        struct pack_spot spot;
        if (!read_spot(&spot, json_array_get(held, i)) || !is_before(spot, seam->next) ||
            (i > 0 && !is_before(seam->held[i - 1], spot)))
            return false;
        pack_seam_add(seam, spot);
    }
    return true;
}

int pack_seam_read(struct pack_seam *seam, json_t **config, json_t **inputs, const char *path,
                   struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    *config = *inputs = NULL;
    int rc = s2s_stream_open(&in, path, err);
    if (rc < 0)
        return rc;
    const int64_t n = s2s_stream_n_records(in, err); /* which only a whole stream has */
    const json_t *of = json_object_get(s2s_stream_header(in), "config");
    rc = n < 0 ? (int)n : 0;
    if (rc == 0 && !parse(seam, json_object_get(of, "seam"))) {
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: does not say where it ends", path);
        s2s_error_hint(err, rc, "s2s-pack --packs N makes streams that can be gone on with");
    }
    if (rc == 0) {
        *config = json_deep_copy(of);
        *inputs = json_deep_copy(s2s_stream_inputs(in));
    }
    s2s_stream_close(in);
    return rc;
}
