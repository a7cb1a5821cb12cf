/* Archives that torch.save writes: zip files of storages and a pickle (data.pkl) that describes
 * them. */
#ifndef CKPT_TORCH_ZIP_H
#define CKPT_TORCH_ZIP_H

#include "lib/ckpt/pickle/pickle.h"
#include "lib/io/zip.h"

struct s2s_ckpt;

/* Limit on the members of one item of a .distcp file, which holds one tensor or one object. */
enum { CKPT_ITEM_MEMBERS = 65536 };

/* A torch.save archive whose data.pkl is parsed. */
struct ckpt_archive {
    struct s2s_zip zip;
    struct ckpt_pickle pickle;
    char *bytes; /* of data.pkl, which the pickle points into; NULL: too large to keep */
    struct s2s_zip_member data_pkl;
    char *name; /* of that */
};
/* Opens the archive at source. Gives: ckpt_archive_release, only after success. FORMAT, TRUNCATED;
 * UNSUPPORTED: not written by torch.save, big-endian, or (with CKPT_STRICT) its pickle refers to
 * unknown classes. */
int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
/* The same in two steps: all but the pickle, then this, which does not need the zip's members.
 * taker may be NULL. On failure of the second, too, there is nothing to release. */
int ckpt_archive_begin(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                       struct s2s_error *err);
int ckpt_archive_parse(struct ckpt_archive *archive, enum ckpt_pickle_mode mode,
                       const struct ckpt_pickle_taker *taker, struct s2s_error *err);
void ckpt_archive_release(struct ckpt_archive *archive);
/* Verifies the CRC-32 of each member that is not a storage (data.pkl, byteorder, ..). DIGEST, IO.
 */
int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err);
/* Warns, once per checkpoint, if this storage has no CRC-32: PyTorch can be configured not to write
 * them (torch.serialization.set_crc32_options). */
void ckpt_warn_no_crc(struct s2s_ckpt *ckpt, const struct s2s_zip_member *member);
/* Warns of unknown classes in a file or object, which are represented by their names, if there are
 * any. The same warning is not repeated for consecutive files, such as those of hundreds of ranks.
 */
void ckpt_warn_opaque(struct s2s_ckpt *ckpt, const struct ckpt_pickle *pickle, const char *name);

#endif
