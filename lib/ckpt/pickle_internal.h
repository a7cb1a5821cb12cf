/* Between the machine and its list of classes. */
#ifndef CKPT_PICKLE_INTERNAL_H
#define CKPT_PICKLE_INTERNAL_H

#include "lib/ckpt/pickle.h"

enum pickle_verdict { PICKLE_ALLOWED, PICKLE_UNKNOWN, PICKLE_HOSTILE };

enum pickle_verdict ckpt_judge_global(const struct ckpt_node *node);

#endif
