/* What the files of this room share. */
#ifndef CKPT_INTERNAL_H
#define CKPT_INTERNAL_H

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/names.h"
#include "lib/io/there.h"

#endif
