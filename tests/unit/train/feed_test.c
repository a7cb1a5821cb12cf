/* What each rank of a grid gets of a step: of files and of a pipe, on grids of two axes and more.
 */
#include "tests/unit/mesh/launch.h"

#include <fcntl.h>

#include "lib/io/digest.h"
#include "lib/train/feed.h"
#include "tests/unit/train/packs.h"

/* A sample of record i is another one. */
static void damage(const char *path, int i)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    assert_int_equal(s2s_stream_open(&in, path, NULL), 0);
    assert_true(s2s_stream_n_records(in, NULL) > i);
    assert_int_equal(s2s_stream_read_at(in, i, &rec, NULL), 0);
    const off_t at = (off_t)(rec.offset + (int64_t)rec.len_bytes - 9);
    s2s_stream_close(in);
    char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte = (char)(byte ^ 1);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* ---- what a rank got ---- */

/* All that a model may look at. */
static uint64_t digest_of(const struct s2s_pack *p)
{
    const struct s2s_batch *b = &p->batch;
    const struct s2s_media *m = &b->media[0];
    const int64_t rows = s2s_media_n_rows(m);
    struct s2s_buf all = S2S_BUF_INIT;
    s2s_buf_printf(&all, "%ld %ld %ld %d %ld %ld %ld %ld %s %s", (long)b->n_tokens, (long)b->n_seqs,
                   (long)b->max_seqlen, b->n_media, (long)m->n, (long)m->width, (long)p->n_labels,
                   (long)p->n_real, p->place, p->ids ? p->ids : "");
    s2s_buf_add(&all, b->input_ids, (size_t)b->n_tokens * 4);
    s2s_buf_add(&all, b->labels, (size_t)b->n_tokens * 4);
    s2s_buf_add(&all, b->position_ids, (size_t)b->n_tokens * 4);
    s2s_buf_add(&all, b->cu_seqlens, (size_t)(b->n_seqs + 1) * 4);
    s2s_buf_add(&all, b->seq_lens, (size_t)b->n_seqs * 4);
    if (m->n > 0) {
        s2s_buf_add(&all, p->clip_slot, (size_t)m->n * 4);
        s2s_buf_add(&all, m->rows, (size_t)m->n * 4);
        s2s_buf_add(&all, m->slot_of_row, (size_t)rows * 4);
        s2s_buf_add(&all, m->cu, (size_t)(m->n + 1) * 8);
        s2s_buf_add(&all, m->data, (size_t)(m->cu[m->n] * m->width) * 4);
    }
    uint64_t digest = s2s_xxh3_64(all.data, all.len);
    s2s_buf_release(&all);
    return digest;
}

/* The first ids of its sequences' pairs: "4,5" are two packs joined, "-" is an empty microbatch. */
static void say_microbatch(struct s2s_buf *said, const struct s2s_pack *p)
{
    expect(p->batch.n_seqs * 4 == p->batch.n_tokens && p->batch.cu_seqlens[0] == 0, "sizes");
    expect(p->batch.media[0].n == p->batch.n_seqs, "clips");
    for (int64_t s = 0; s < p->batch.n_seqs; s += 2)
        s2s_buf_printf(said, "%s%d", s ? "," : "", p->batch.input_ids[p->batch.cu_seqlens[s]]);
    s2s_buf_puts(said, p->batch.n_seqs ? " " : "- ");
}

/* The next step: "0 2 |" are two microbatches, "end" is none. The peers have the same bytes. */
static void say_step(struct s2s_buf *said, struct s2s_feed *feed, struct s2s_comm *peers)
{
    const struct s2s_feed_step *step = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_feed_next(feed, &step, &err) < 0) {
        s2s_buf_printf(said, "failed: %s", err.text);
        return;
    }
    for (int64_t i = 0; i < step->n_microbatches; i++) {
        uint64_t digests[4], mine = digest_of(step->microbatches[i]);
        say_microbatch(said, step->microbatches[i]);
        s2s_comm_all_gather(peers, digests, &mine, 1, S2S_I64);
        for (int r = 0; r < s2s_comm_size(peers); r++)
            expect(digests[r] == mine, "peers have the same pack");
    }
    s2s_buf_puts(said, step->n_global > 0 ? "| " : "end");
}

static struct s2s_feed *open_feed(struct s2s_mesh *mesh, struct s2s_grid *grid, const char *path,
                                  int64_t packs_per_step, int64_t together)
{
    static const char *paths[1];
    struct s2s_feed_options options = {.paths = paths,
                                       .n_paths = 1,
                                       .packs_per_step = packs_per_step,
                                       .packs_per_microbatch = together,
                                       .mesh = mesh,
                                       .grid = grid,
                                       .n_mels = 8};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_feed *feed = NULL;
    paths[0] = path;
    if (s2s_feed_open(&feed, &options, &err) < 0) {
        fprintf(stderr, "rank test failed: %s\n", err.text);
        bad = 1;
    }
    return feed;
}

static void expect_said(struct s2s_buf *said, const char *wanted)
{
    if (strcmp(said->data ? said->data : "", wanted) != 0) {
        fprintf(stderr, "rank test failed: got '%s', wanted '%s'\n", said->data, wanted);
        bad = 1;
    }
    s2s_buf_release(said);
}

static struct s2s_comm *peers_of(struct s2s_grid *grid)
{
    return s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_TP) | S2S_AXIS_BIT(S2S_AXIS_CP) |
                                   S2S_AXIS_BIT(S2S_AXIS_EP) | S2S_AXIS_BIT(S2S_AXIS_PP));
}

/* `n_steps` of them on this rank, read from path. */
static void get(struct s2s_mesh *mesh, struct s2s_grid *grid, const char *path,
                int64_t packs_per_step, int64_t together, int n_steps, const char *wanted)
{
    struct s2s_buf said = S2S_BUF_INIT;
    struct s2s_feed *feed = open_feed(mesh, grid, path, packs_per_step, together);
    for (int i = 0; feed && i < n_steps; i++)
        say_step(&said, feed, peers_of(grid));
    s2s_feed_close(feed);
    expect_said(&said, wanted);
}

static struct s2s_grid *add_grid(struct s2s_mesh *mesh, const char *name, int first, int tp, int dp)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    struct s2s_grid *grid = NULL;
    spec.name = name;
    spec.first_rank = first;
    spec.size[S2S_AXIS_TP] = tp;
    spec.size[S2S_AXIS_DP] = dp;
    expect(s2s_mesh_add_grid(&grid, mesh, &spec, &err) == 0, "grid");
    return grid;
}

/* ---- the ranks ---- */

static void pipe_on_one_grid(struct s2s_mesh *mesh, const char *folder)
{
    struct s2s_grid *grid = two_by_two(mesh);
    const bool second = s2s_grid_coord(grid, S2S_AXIS_DP) == 1;
    get(mesh, grid, "-", 4, 1, 3, second ? "1 3 | 5 | end" : "0 2 | 4 | end");
}

/* Ranks 0 and 1 share all packs; 2 and 3 share them out. */
static void pipe_on_two_grids(struct s2s_mesh *mesh, const char *folder)
{
    static const char *const wanted[] = {"0,1 2,3 | 4,5 | end", "0,1 2,3 | 4,5 | end",
                                         "0,1 | 4,5 | end", "2,3 | - | end"};
    struct s2s_grid *a = add_grid(mesh, "a", 0, 2, 1), *b = add_grid(mesh, "b", 2, 1, 2);
    const int rank = s2s_mesh_rank(mesh);
    get(mesh, s2s_grid_coord(a, S2S_AXIS_DP) >= 0 ? a : b, "-", 4, 2, 3, wanted[rank]);
}

/* The rank that reads has no part in the grid, and neither has the last. */
static void pipe_beside_the_grid(struct s2s_mesh *mesh, const char *folder)
{
    static const char *const wanted[] = {"| | end", "0 2 | 4 | end", "1 3 | 5 | end", "| | end"};
    struct s2s_grid *grid = add_grid(mesh, "middle", 1, 1, 2);
    get(mesh, grid, "-", 4, 1, 3, wanted[s2s_mesh_rank(mesh)]);
}

static char *in(const char *folder, const char *name)
{
    return s2s_xasprintf("%s/%s", folder, name);
}

static void files(struct s2s_mesh *mesh, const char *folder)
{
    struct s2s_grid *grid = two_by_two(mesh);
    const int tp = s2s_grid_coord(grid, S2S_AXIS_TP), dp = s2s_grid_coord(grid, S2S_AXIS_DP);
    char *a = in(folder, "a.s2s"), *b = in(folder, "b.s2s"), *bad_one = in(folder, "bad.s2s");
    /* packs 0, 1 | 2, 3 | 4 are three microbatches on two: every rank has two */
    get(mesh, grid, a, 5, 2, 1, dp ? "2,3 - | " : "0,1 4 | ");
    /* and so on where an epoch ends and the next begins */
    get(mesh, grid, a, 4, 1, 2, dp ? "1 3 | 5 1 | " : "0 2 | 4 0 | ");
    /* to the peers another file has the same name: each pack comes from one of them alone */
    get(mesh, grid, tp ? b : a, 6, 1, 1, dp ? "1 103 5 | " : "0 102 4 | ");
    /* what one cannot read all its peers miss; the others have theirs */
    struct s2s_buf said = S2S_BUF_INIT;
    struct s2s_feed *feed = open_feed(mesh, grid, bad_one, 4, 1);
    say_step(&said, feed, peers_of(grid));
    s2s_feed_close(feed);
    if (dp)
        expect(strstr(said.data, "failed: ") && strstr(said.data, "bad.s2s: record 3"), said.data);
    else
        expect(strcmp(said.data, "0 2 | ") == 0, said.data);
    s2s_buf_release(&said);
    free(a);
    free(b);
    free(bad_one);
}

static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh = NULL;
    const struct {
        const char *name;
        void (*run)(struct s2s_mesh *mesh, const char *folder);
    } cases[] = {{"one ", pipe_on_one_grid},
                 {"two ", pipe_on_two_grids},
                 {"mid ", pipe_beside_the_grid},
                 {"all ", files}};
    if (s2s_mesh_open(&mesh, &(struct s2s_mesh_options){.timeout_s = 20}, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strncmp(what, cases[i].name, 4) == 0)
            cases[i].run(mesh, what + 4);
    s2s_mesh_close(mesh);
    return bad;
}

/* ---- the tests ---- */

static char folder_[] = "/tmp/s2s-feed-XXXXXX";

static void launch_with_pipe(const char *name)
{
    char *path = in(folder_, "a.s2s"), *what = s2s_xasprintf("%s %s", name, folder_);
    const int kept = dup(STDIN_FILENO), fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    dup2(fd, STDIN_FILENO);
    launch_well(4, what);
    dup2(kept, STDIN_FILENO);
    close(kept);
    close(fd);
    free(path);
    free(what);
}

static void t8_stdin_is_read_once_whatever_the_grid(void **state)
{
    launch_with_pipe("one");
}

static void stdin_feeds_the_grids_of_a_launch_alike(void **state)
{
    launch_with_pipe("two");
}

static void stdin_is_read_by_a_rank_outside_of_the_grid(void **state)
{
    launch_with_pipe("mid");
}

static void peers_share_the_reading_and_see_the_same_microbatches(void **state)
{
    char *what = s2s_xasprintf("all %s", folder_);
    launch_well(4, what);
    free(what);
}

static int make_streams(void **state)
{
    if (!mkdtemp(folder_))
        return -1;
    char *a = in(folder_, "a.s2s"), *b = in(folder_, "b.s2s"), *bad_one = in(folder_, "bad.s2s");
    write_stream(a, 0, 6);
    write_stream(b, 100, 6);
    write_stream(bad_one, 0, 6);
    damage(bad_one, 3);
    free(a);
    free(b);
    free(bad_one);
    return 0;
}

static int remove_streams(void **state)
{
    char *command = s2s_xasprintf("rm -rf '%s'", folder_);
    int rc = system(command);
    free(command);
    return rc;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t8_stdin_is_read_once_whatever_the_grid),
        cmocka_unit_test(stdin_feeds_the_grids_of_a_launch_alike),
        cmocka_unit_test(stdin_is_read_by_a_rank_outside_of_the_grid),
        cmocka_unit_test(peers_share_the_reading_and_see_the_same_microbatches),
    };
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    return cmocka_run_group_tests(tests, make_streams, remove_streams);
}
