/* Archives of torch.save's: a zip of storages and the pickle that says what they are. */
#ifndef CKPT_TORCH_ZIP_H
#define CKPT_TORCH_ZIP_H

#include "lib/ckpt/pickle/pickle.h"
#include "lib/io/zip.h"

struct s2s_ckpt;

/* Members of an item of a .distcp file, at most: it holds one tensor or one object. */
enum { CKPT_ITEM_MEMBERS = 65536 };

/* An archive of torch.save's, with its data.pkl parsed. */
struct ckpt_archive {
    struct s2s_zip zip;
    struct ckpt_pickle pickle;
    char *bytes; /* of data.pkl, into which the pickle points; NULL: so large that it is not kept */
};
/* Opens the archive at source. Gives: ckpt_archive_release, only after success. FORMAT, TRUNCATED;
 * UNSUPPORTED: it is not one of torch.save's, its bytes are big-endian, or (with CKPT_STRICT) its
 * pickle names classes that are not known. */
int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
void ckpt_archive_release(struct ckpt_archive *archive);
/* Compares the CRC-32 of each member of an archive that is no storage (data.pkl, byteorder, ..).
 * DIGEST, IO. */
int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err);
/* Warns, once a checkpoint, if this storage of an archive has no CRC-32 to compare: PyTorch can be
 * told not to write them (torch.serialization.set_crc32_options). */
void ckpt_warn_no_crc(struct s2s_ckpt *ckpt, const struct s2s_zip_member *member);
/* Warns of classes in a file or object that are kept as names, if there are any. Of those that are
 * alike one after the other, such as the files of hundreds of ranks, the first is told of. */
void ckpt_warn_opaque(struct s2s_ckpt *ckpt, const struct ckpt_pickle *pickle, const char *name);

#endif
