/* Errors, memory, numbers, dtypes, logging, progress, threads, and what all programs have in
 * common. */
#ifndef S2S_BASE_H
#define S2S_BASE_H

/* unsafe functions do not compile; system headers that mention them must come first */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/affix.h"
#include "lib/base/blocks.h"
#include "lib/base/dtype.h"
#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/num.h"
#include "lib/base/plural.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/base/sort.h"
#include "lib/base/threads.h"

#pragma GCC poison strcpy strcat sprintf strtok atoi atof gmtime localtime

#endif
