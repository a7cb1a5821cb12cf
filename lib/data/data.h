/*
 * Samples of a data set, as described by manifests: NeMo JSONL manifests, Lhotse cuts, rows that
 * are tokenized already. One line of text is one JSON object.
 */
#ifndef S2S_DATA_H
#define S2S_DATA_H

#include "lib/data/cut.h"
#include "lib/data/lines.h"
#include "lib/data/manifest.h"
#include "lib/data/order.h"
#include "lib/data/source.h"

#endif
