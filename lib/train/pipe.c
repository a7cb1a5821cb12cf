/*
 * A pipe: rank 0 of the launch reads ahead in a thread, and hands each step's records to the ranks
 * that make packs of them, of however many grids. The others know the stream only by its header.
 * While nothing comes all ranks meet every now and then, so that a signal to any of them is heard,
 * and no collective takes as long as the writer at the other end.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/train/feed_internal.h"

enum { AHEAD = 64, MEET_MS = 200 };

struct train_pipe {
    struct s2s_comm *world;
    struct train_place *places; /* [ranks of the launch] */
    bool (*give_up)(void *ctx);
    void *give_up_ctx;
    bool given_up; /* by all ranks */
    /* rank 0 */
    struct train_streams streams;
    int64_t skip;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct s2s_buf ahead[AHEAD]; /* a ring */
    size_t head, n_ahead;
    struct s2s_buf *taken; /* out of the ring for the next step; NULL: none yet */
    int64_t n_taken;
    bool ended, stop;
    int rc;
    struct s2s_error err;
};

static void *read_ahead(void *arg)
{
    struct train_pipe *p = arg;
    struct s2s_record rec;
    struct s2s_error err = S2S_ERROR_INIT;
    int rc;
    while ((rc = s2s_stream_next(p->streams.in[0], &rec, &err)) > 0) {
        if (p->skip > 0) {
            p->skip--;
            continue;
        }
        pthread_mutex_lock(&p->lock);
        while (p->n_ahead == AHEAD && !p->stop)
            pthread_cond_wait(&p->change, &p->lock);
        if (p->stop) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        struct s2s_buf *slot = &p->ahead[(p->head + p->n_ahead) % AHEAD];
        s2s_buf_clear(slot);
        s2s_buf_add(slot, rec.bytes, rec.len_bytes);
        p->n_ahead++;
        pthread_cond_broadcast(&p->change);
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    p->rc = rc;
    p->err = err;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Asks all ranks, who have met. */
static bool is_given_up(struct train_pipe *p)
{
    p->given_up = p->given_up || (p->give_up && p->give_up(p->give_up_ctx));
    return p->given_up;
}

/* Until there is something to read, or the end, or nobody wants it any more. */
static void wait_for_header(struct train_pipe *p)
{
    uint8_t there = 0;
    for (;;) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (s2s_comm_rank(p->world) == 0)
            there = poll(&in, 1, MEET_MS) > 0; /* the end and errors are there, too */
        s2s_comm_broadcast(p->world, &there, 1, S2S_U8, 0);
        if (there || is_given_up(p))
            return;
    }
}

/* Every rank compiles the header that rank 0 read. */
static int share_header(struct train_pipe *p, struct s2s_schema *schema,
                        const struct s2s_pack_reader *reader, struct s2s_error *err)
{
    char *text = NULL;
    if (s2s_comm_rank(p->world) == 0)
        text = json_dumps(s2s_stream_header(p->streams.in[0]), JSON_COMPACT);
    int64_t len = text ? (int64_t)strlen(text) : 0;
    s2s_comm_broadcast(p->world, &len, 1, S2S_I64, 0);
    if (!text)
        text = s2s_xcalloc((size_t)len + 1, 1);
    s2s_comm_broadcast(p->world, text, len, S2S_U8, 0);
    json_t *header = json_loadb(text, (size_t)len, 0, NULL);
    free(text);
    int rc = s2s_schema_compile(schema, header, err);
    if (rc == 0 && (rc = train_reader_fits(reader, header, err)) < 0)
        s2s_error_add(err, rc, "stdin");
    json_decref(header);
    return rc;
}

int train_pipe_open(struct train_pipe **out, const struct s2s_feed_options *options,
                    const struct train_place *at, struct s2s_schema *schema,
                    const struct s2s_pack_reader *reader, struct s2s_error *err)
{
    static const char *const stdin_path[] = {"-"};
    struct s2s_comm *world = s2s_mesh_world(options->mesh);
    struct train_pipe *p = s2s_xcalloc(1, sizeof *p);
    struct s2s_error say = S2S_ERROR_INIT;
    int32_t rc = 0;
    *out = p;
    p->world = world;
    p->give_up = options->give_up;
    p->give_up_ctx = options->give_up_ctx;
    p->skip = options->first_pack;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->change, NULL);
    p->places = s2s_xcalloc((size_t)s2s_comm_size(world), sizeof *p->places);
    s2s_comm_all_gather(world, p->places, at, sizeof *at, S2S_U8);
    wait_for_header(p);
    if (p->given_up)
        return 0;
    if (s2s_comm_rank(world) == 0)
        rc = train_streams_open(&p->streams, stdin_path, 1, NULL, &say);
    s2s_comm_broadcast(world, &rc, 1, S2S_I32, 0);
    s2s_comm_broadcast(world, &say, sizeof say, S2S_U8, 0);
    if (rc < 0 && err)
        *err = say;
    if (rc < 0 || (rc = share_header(p, schema, reader, err)) < 0)
        return rc;
    if (s2s_comm_rank(world) != 0)
        return 0;
    p->running = pthread_create(&p->thread, NULL, read_ahead, p) == 0;
    return p->running ? 0 : s2s_error_set(err, S2S_E_NOMEM, "no thread to read the pipe");
}

const struct train_streams *train_pipe_streams(const struct train_pipe *pipe)
{
    return &pipe->streams;
}

/* Rank 0: moves what there is of n records from the ring to `taken`, and waits for the rest if
 * `wait`, but not longer than the others should be left alone. True when they are complete: all n,
 * or what there was before the end; the pipe's failure counts then. */
static bool take_ahead(struct train_pipe *p, int64_t n, bool wait)
{
    struct timespec until;
    int late = !wait;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MEET_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (!p->taken)
        p->taken = s2s_xcalloc((size_t)n, sizeof *p->taken);
    pthread_mutex_lock(&p->lock);
    while (p->n_taken < n) {
        while (p->n_ahead == 0 && !p->ended && late == 0)
            late = pthread_cond_timedwait(&p->change, &p->lock, &until);
        if (p->n_ahead == 0)
            break;
        struct s2s_buf *slot = &p->ahead[p->head];
        p->taken[p->n_taken++] = *slot;
        *slot = (struct s2s_buf)S2S_BUF_INIT;
        p->head = (p->head + 1) % AHEAD;
        p->n_ahead--;
        pthread_cond_broadcast(&p->change);
    }
    const bool complete = p->n_taken == n || p->ended;
    pthread_mutex_unlock(&p->lock);
    return complete;
}

static void release_taken(struct train_pipe *p)
{
    for (int64_t i = 0; i < p->n_taken; i++)
        s2s_buf_release(&p->taken[i]);
    free(p->taken);
    p->taken = NULL;
    p->n_taken = 0;
}

static void send_record(struct train_pipe *p, const struct s2s_buf *record, int to)
{
    const int64_t len = (int64_t)record->len;
    s2s_comm_send(p->world, &len, 1, S2S_I64, to);
    s2s_comm_send(p->world, record->data, len, S2S_U8, to);
}

static void receive_record(struct train_pipe *p, struct s2s_buf *record)
{
    int64_t len;
    s2s_comm_recv(p->world, &len, 1, S2S_I64, 0);
    s2s_buf_reserve(record, (size_t)len);
    s2s_comm_recv(p->world, record->data, len, S2S_U8, 0);
    record->len = (size_t)len;
}

static void hand_out(struct train_pipe *p, const struct s2s_buf *records, int64_t n,
                     int64_t together, struct s2s_buf *mine, size_t *n_mine)
{
    const int rank = s2s_comm_rank(p->world), size = s2s_comm_size(p->world);
    *n_mine = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int to = 1; rank == 0 && to < size; to++)
            if (train_place_reads(&p->places[to], i, together))
                send_record(p, &records[i], to);
        if (!train_place_reads(&p->places[rank], i, together))
            continue;
        if (rank == 0)
            s2s_buf_add(&mine[*n_mine], records[i].data, records[i].len);
        else
            receive_record(p, &mine[*n_mine]);
        ++*n_mine;
    }
}

/* The failure of rank 0, or none, is everybody's. */
static int share_failure(struct train_pipe *p, int64_t n, struct s2s_error *err)
{
    struct s2s_error say = S2S_ERROR_INIT;
    int64_t rc = p->n_taken < n && !p->given_up ? p->rc : 0;
    s2s_comm_broadcast(p->world, &rc, 1, S2S_I64, 0);
    if (rc == 0)
        return 0;
    if (s2s_comm_rank(p->world) == 0)
        say = p->err;
    s2s_comm_broadcast(p->world, &say, sizeof say, S2S_U8, 0);
    *err = say;
    return (int)rc;
}

int train_pipe_take(struct train_pipe *p, int64_t n, int64_t together, bool wait,
                    struct s2s_buf **mine, size_t *n_mine, int64_t *n_global, struct s2s_error *err)
{
    int64_t answer[2] = {0, 0}; /* records, whether they are complete */
    *n_global = 0;
    while (!answer[1] && !p->given_up) {
        if (s2s_comm_rank(p->world) == 0)
            answer[1] = take_ahead(p, n, wait);
        answer[0] = p->n_taken;
        s2s_comm_broadcast(p->world, answer, 2, S2S_I64, 0);
        if (!answer[1] && !wait)
            return 0;
        if (!answer[1])
            is_given_up(p);
    }
    int rc = share_failure(p, n, err);
    if (rc == 0 && !p->given_up) {
        *n_global = answer[0];
        *mine = s2s_xcalloc((size_t)n, sizeof **mine);
        hand_out(p, p->taken, answer[0], together, *mine, n_mine);
    }
    release_taken(p);
    return rc < 0 ? rc : 1;
}

void train_pipe_close(struct train_pipe *p)
{
    if (!p)
        return;
    release_taken(p);
    if (p->running) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->change);
        bool ended = p->ended;
        pthread_mutex_unlock(&p->lock);
        /* a reader that waits for a writer that has nothing to say is left behind */
        if (ended)
            pthread_join(p->thread, NULL);
        else
            pthread_detach(p->thread);
        if (!ended)
            return;
    }
    if (p->streams.in)
        train_streams_close(&p->streams);
    for (size_t i = 0; i < AHEAD; i++)
        s2s_buf_release(&p->ahead[i]);
    free(p->places);
    free(p);
}
