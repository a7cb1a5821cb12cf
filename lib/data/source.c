/* What all kinds of sources share. */
#include "lib/data/source.h"

#include <stdlib.h>

#include "lib/base/base.h"

int s2s_source_next(struct s2s_source *source, struct s2s_place *place, struct s2s_error *err)
{
    if (!source->walk)
        source->walk = source->kind->begin(source);
    return source->kind->next(source->walk, place, err);
}

void s2s_source_rewind(struct s2s_source *source)
{
    if (source->walk)
        source->kind->end(source->walk);
    source->walk = NULL;
}

int s2s_source_load(const struct s2s_source *source, struct s2s_sample *sample,
                    const struct s2s_place *place, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    int rc = source->kind->load(source, sample, place, err);
    if (rc >= 0)
        return rc;
    s2s_sample_release(sample);
    return s2s_source_error(rc, source, place, err);
}

int s2s_source_error(int rc, const struct s2s_source *source, const struct s2s_place *place,
                     struct s2s_error *err)
{
    char *where = source->kind->where(source, place);
    s2s_error_add(err, rc, "%s", where);
    free(where);
    return rc;
}

bool s2s_source_digest(const struct s2s_source *source, size_t k, char hex[33])
{
    return source->kind->digest(source, k, hex);
}

void s2s_source_close(struct s2s_source *source)
{
    if (!source)
        return;
    s2s_source_rewind(source);
    source->kind->close(source);
}

void data_keep_lists(struct s2s_source_options *opt)
{
    json_incref(opt->tags);
    json_incref(opt->placeholders);
    json_incref(opt->turns.input_roles);
    json_incref(opt->turns.output_roles);
}

void data_drop_lists(const struct s2s_source_options *opt)
{
    json_decref(opt->tags);
    json_decref(opt->placeholders);
    json_decref(opt->turns.input_roles);
    json_decref(opt->turns.output_roles);
}
