/*
 * THD batches: utterances of different lengths in one row without padding between them. Integers
 * only, every result exact: which utterances share a row (bins.h), what the row holds (salm.h), and
 * how it is split over context-parallel ranks (cp.h).
 */
#ifndef S2S_THD_H
#define S2S_THD_H

#include "lib/thd/bins.h"
#include "lib/thd/cp.h"
#include "lib/thd/duplex.h"
#include "lib/thd/layout.h"
#include "lib/thd/lookahead.h"
#include "lib/thd/salm.h"

#endif
