/*
 * rt.h on the CPU: device memory is host memory, and what is issued is done when a call returns.
 * Streams beside others have a thread each: what is issued there is done later, and who does not
 * wait for its event reads too early.
 *
 * S2S_EMU_DEVICES: how many devices there are (8). S2S_EMU_LATE_MS: such a thread sleeps that long
 * before each thing to do. S2S_EMU_BYTES: memory of a device. S2S_EMU_SM: what it can, 80 or 90.
 */
#include <malloc.h>

#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/cuda/emu/stream.h"
#include "kernels/cuda/ptx_sm90.h"
#include "kernels/cuda/rt.h"

/* ---- devices ---- */

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

int rt_open(int index, struct rt_device *device)
{
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "emulated");
    snprintf(device->id, sizeof device->id, "emulated:%d",
             index % (int)setting("S2S_EMU_DEVICES", 8));
    device->bytes = (size_t)1 << 34;
    device->multiprocessors = 2;
    device->major = (int)setting("S2S_EMU_SM", 80) / 10;
    device->shared_bytes = device->major == 9 ? 227 << 10 : 99 << 10;
    return 0;
}

const char *rt_status_text(int status)
{
    return status ? "unknown" : "no failure";
}

/* What was asked for since the program began; device_test.c reads it. */
struct emu_calls {
    uint64_t waits, allocs, host_allocs;
};
static struct emu_calls calls;

extern "C" void emu_calls_so_far(struct emu_calls *out)
{
    *out = calls;
}

/* Products of warps with wgmma; attention_test.c reads it. */
extern "C" uint64_t emu_products_so_far(void)
{
    return emu::done.products;
}

/* ---- streams ---- */

struct rt_stream : emu_stream {
    bool stop;
    std::thread thread; /* begun with the first thing to do */
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> orders; /* the first of them may be under way */
};

static void work(struct rt_stream *s)
{
    const auto late = std::chrono::milliseconds(setting("S2S_EMU_LATE_MS", 0));
    std::unique_lock<std::mutex> held(s->lock);
    for (;;) {
        s->changed.wait(held, [s] { return s->stop || !s->orders.empty(); });
        if (s->orders.empty())
            return;
        const std::function<void()> &order = s->orders.front();
        held.unlock();
        std::this_thread::sleep_for(late);
        order();
        held.lock();
        s->orders.pop_front();
        s->changed.notify_all();
    }
}

static void issue(struct rt_stream *s, std::function<void()> order)
{
    if (!s->beside) {
        order();
        return;
    }
    std::lock_guard<std::mutex> held(s->lock);
    s->orders.push_back(std::move(order));
    if (!s->thread.joinable())
        s->thread = std::thread(work, s);
    s->changed.notify_all();
}

static void issue_for_libraries(struct emu_stream *stream, void (*fn)(void *), void *arg)
{
    issue(static_cast<struct rt_stream *>(stream), [fn, arg] { fn(arg); });
}

static int stream_new(struct rt_stream **stream, bool beside)
{
    *stream = new rt_stream();
    (*stream)->issue = issue_for_libraries;
    (*stream)->beside = beside;
    return 0;
}

int rt_stream_new(struct rt_stream **stream)
{
    return stream_new(stream, false);
}

int rt_stream_new_beside(struct rt_stream **stream)
{
    return stream_new(stream, true);
}

static void drain(struct rt_stream *s)
{
    std::unique_lock<std::mutex> held(s->lock);
    s->changed.wait(held, [s] { return s->orders.empty(); });
}

int rt_stream_wait(struct rt_stream *s)
{
    calls.waits++;
    drain(s);
    return 0;
}

void rt_stream_free(struct rt_stream *s)
{
    if (!s)
        return;
    drain(s);
    {
        std::lock_guard<std::mutex> held(s->lock);
        s->stop = true;
        s->changed.notify_all();
    }
    if (s->thread.joinable())
        s->thread.join();
    delete s;
}

/* ---- memory ---- */

static void *aligned(size_t bytes)
{
    void *ptr = NULL;
    return posix_memalign(&ptr, 256, bytes ? bytes : 1) ? NULL : ptr;
}

static size_t in_use;

void *rt_alloc(size_t bytes)
{
    calls.allocs++;
    if (in_use + bytes > (size_t)setting("S2S_EMU_BYTES", LONG_MAX))
        return NULL;
    void *ptr = aligned(bytes);
    in_use += malloc_usable_size(ptr);
    return ptr;
}

void rt_free(void *ptr)
{
    in_use -= malloc_usable_size(ptr);
    free(ptr);
}

void *rt_alloc_host(size_t bytes)
{
    calls.host_allocs++;
    return aligned(bytes);
}

void rt_free_host(void *ptr)
{
    free(ptr);
}

int rt_copy(struct rt_stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        issue(stream, [=] { memcpy(dst, src, bytes); });
    return 0;
}

int rt_zero(struct rt_stream *stream, void *dst, size_t bytes)
{
    if (bytes)
        issue(stream, [=] { memset(dst, 0, bytes); });
    return 0;
}

/* ---- events ---- */

struct rt_event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded, passed;
};

struct rt_event *rt_event_new(void)
{
    return new rt_event();
}

void rt_event_free(struct rt_event *event)
{
    delete event;
}

int rt_event_record(struct rt_event *event, struct rt_stream *stream)
{
    uint64_t number;
    {
        std::lock_guard<std::mutex> held(event->lock);
        number = ++event->recorded;
    }
    issue(stream, [=] {
        std::lock_guard<std::mutex> held(event->lock);
        event->passed = number;
        event->changed.notify_all();
    });
    return 0;
}

/* The last record before the call counts. */
int rt_event_wait(struct rt_event *event, struct rt_stream *stream)
{
    uint64_t number;
    {
        std::lock_guard<std::mutex> held(event->lock);
        number = event->recorded;
    }
    issue(stream, [=] {
        std::unique_lock<std::mutex> held(event->lock);
        event->changed.wait(held, [=] { return event->passed >= number; });
    });
    return 0;
}

bool rt_event_passed(struct rt_event *event)
{
    std::lock_guard<std::mutex> held(event->lock);
    return event->passed == event->recorded;
}

/* ---- launches ---- */

int rt_tensor_map(struct tensor_map *map, const struct tensor_shape *t)
{
    memset(map, 0, sizeof *map);
    if (!t->data || t->rows < 1 || t->planes < 1 || t->cols < 1 || (uintptr_t)t->data % 16 ||
        t->cols % 8 || t->row_stride % 8 || t->box_rows < 1 || t->box_rows > 256 ||
        t->box_cols * 2 != t->swizzle || (t->swizzle != 128 && t->swizzle != 64))
        return 1;
    const emu::box_map m = {(const char *)t->data, t->rows,     t->planes,   t->cols,
                            t->row_stride * 2,     t->box_rows, t->box_cols, t->swizzle};
    memcpy(map, &m, sizeof m);
    return 0;
}

int rt_before_launch(const void *kernel, size_t shared_bytes)
{
    return 0;
}

int rt_after_launch(void)
{
    return 0;
}
