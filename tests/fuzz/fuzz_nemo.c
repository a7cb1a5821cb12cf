/* .nemo archives. First byte 0: the rest is an archive as it is, compressed or not; else a list of
 * members as in folder.h, with right header checksums, and for 2 compressed; for 3 the same as an
 * unpacked folder. */
/* run.sh: max_len=4096 */
#include <sys/mman.h>

#include <zlib.h>

#include "tests/fuzz/folder.h"

enum { BLOCK = 512 };

static const struct folder_name names[] = {
    {"model_config.yaml", false},           {"./model_weights.ckpt", true},
    {"model_weights.ckpt", true},           {"./model_config.yaml", false},
    {"model_weights/.metadata", false},     {"tokenizer.vocab", false},
    {"dir/../../model_config.yaml", false},
};

static void add_member(struct s2s_buf *tar, const char *name, const struct s2s_buf *bytes)
{
    static const char zeros[BLOCK];
    char header[BLOCK] = "";
    unsigned sum = 0;
    snprintf(header, 100, "%s", name);
    memcpy(header + 100, "0000644", 8);
    memcpy(header + 108, "0000000", 8);
    memcpy(header + 116, "0000000", 8);
    snprintf(header + 124, 12, "%011zo", bytes->len);
    memcpy(header + 136, "00000000000", 12);
    memcpy(header + 148, "        ", 8);
    header[156] = '0';
    memcpy(header + 257,
           "ustar\0"
           "00",
           8);
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
    s2s_buf_add(tar, header, BLOCK);
    s2s_buf_add(tar, bytes->data, bytes->len);
    s2s_buf_add(tar, zeros, (BLOCK - bytes->len % BLOCK) % BLOCK);
}

static void make_tar(struct s2s_buf *tar, const uint8_t *data, size_t size)
{
    static const char zeros[2 * BLOCK];
    struct s2s_buf bytes = S2S_BUF_INIT;
    const char *name;
    for (int i = 0;
         i < 8 && folder_next(&data, &size, names, sizeof names / sizeof *names, &name, &bytes);
         i++)
        add_member(tar, name, &bytes);
    s2s_buf_add(tar, zeros, sizeof zeros);
    s2s_buf_release(&bytes);
}

static void compress_tar(struct s2s_buf *tar)
{
    enum { GZIP = 16 + MAX_WBITS, MEMORY = 8 };
    struct s2s_buf plain = *tar;
    z_stream z = {.next_in = (unsigned char *)plain.data, .avail_in = (unsigned)plain.len};
    if (deflateInit2(&z, 1, Z_DEFLATED, GZIP, MEMORY, Z_DEFAULT_STRATEGY) != Z_OK)
        abort();
    *tar = (struct s2s_buf)S2S_BUF_INIT;
    s2s_buf_reserve(tar, deflateBound(&z, z.avail_in));
    z.next_out = (unsigned char *)tar->data;
    z.avail_out = (unsigned)deflateBound(&z, z.avail_in);
    if (deflate(&z, Z_FINISH) != Z_STREAM_END)
        abort();
    tar->len = z.total_out;
    deflateEnd(&z);
    s2s_buf_release(&plain);
}

static void read_and_plan(void)
{
    struct s2s_ckpt *ckpt = folder_open();
    if (!ckpt)
        return;
    folder_plan_hf(ckpt, S2S_DTYPE_NONE);
    folder_plan_nemo(ckpt);
    s2s_ckpt_close(ckpt);
}

static void try_folder(const uint8_t *data, size_t size)
{
    /* the last of the archive's names would lie outside */
    folder_fill(data, size, names, sizeof names / sizeof *names - 1);
    read_and_plan();
}

static void try_archive(const uint8_t *data, size_t size)
{
    struct s2s_buf tar = S2S_BUF_INIT;
    char real[sizeof folder];
    s2s_log_set_verbosity(-1);
    /* where what is inflated goes: to memory */
    if (access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 1) < 0)
        abort();
    if (data[0])
        make_tar(&tar, data + 1, size - 1);
    else
        s2s_buf_add(&tar, data + 1, size - 1);
    if (data[0] == 2)
        compress_tar(&tar);
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, tar.data, tar.len) != (ssize_t)tar.len)
        abort();
    memcpy(real, folder, sizeof real);
    snprintf(folder, sizeof folder, "/proc/self/fd/%d", fd);
    read_and_plan();
    memcpy(folder, real, sizeof real);
    close(fd);
    s2s_buf_release(&tar);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 3)
        try_folder(data + 1, size - 1);
    else
        try_archive(data, size);
    return 0;
}
