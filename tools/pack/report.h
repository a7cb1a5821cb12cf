/* What s2s-pack says about its work: a line for people, JSON for programs. */
#ifndef TOOLS_PACK_REPORT_H
#define TOOLS_PACK_REPORT_H

#include "lib/io/outfile.h"
#include "tools/pack/plan.h"

struct pack_totals {
    int64_t n_samples, n_packs, n_tokens, n_slots;
    int64_t
        n_padded_batch_slots; /* what the same packs take as padded batches: B times the longest */
    int64_t n_audio_samples;  /* of the audio in packs, at the rate of the features */
    struct s2s_salm_counts counts;
    double plan_s, pack_s;
};

/* Writes the report (takes it; NULL: none) and, with --json or --plan, the result on stdout; the
 * last line on stderr. */
int pack_report(const struct pack_totals *totals, const struct pack_plan *plan,
                const struct pack_loader *loader, const struct pack_options *opt,
                struct s2s_outfile *report, struct s2s_error *err);

#endif
