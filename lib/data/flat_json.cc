/* Reads plain objects with simdjson. */
#include "lib/data/flat_json.h"

#include <pthread.h>
#include <string.h>

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

namespace
{
namespace dom = simdjson::dom;

/* A parser and a line with the room after it that the parser wants: each thread has its own. */
struct worker {
    dom::parser parser;
    char *line = nullptr;
    size_t cap = 0;

    ~worker()
    {
        delete[] line;
    }

    bool take(const char *text, size_t len)
    {
        if (len + simdjson::SIMDJSON_PADDING > cap) {
            delete[] line;
            cap = 2 * (len + simdjson::SIMDJSON_PADDING);
            line = new (std::nothrow) char[cap];
            cap = line ? cap : 0;
        }
        if (!line)
            return false;
        memcpy(line, text, len);
        memset(line + len, 0, simdjson::SIMDJSON_PADDING);
        return true;
    }
};

/* may_have_nul: only an escape can put one into a string */
bool take_value(struct data_flat *out, dom::element value, bool may_have_nul)
{
    switch (value.type()) {
    case dom::element_type::NULL_VALUE:
        out->kind = DATA_FLAT_NULL;
        return true;
    case dom::element_type::BOOL:
        out->kind = DATA_FLAT_BOOL;
        out->whole = value.get_bool().value_unsafe();
        return true;
    case dom::element_type::INT64:
        out->kind = DATA_FLAT_INT;
        out->whole = value.get_int64().value_unsafe();
        out->real = (double)out->whole;
        return true;
    case dom::element_type::DOUBLE:
        out->kind = DATA_FLAT_REAL;
        out->real = value.get_double().value_unsafe();
        return true;
    case dom::element_type::STRING:
        out->kind = DATA_FLAT_STRING;
        out->text = value.get_c_str().value_unsafe();
        out->text_len = value.get_string_length().value_unsafe();
        return !may_have_nul || !memchr(out->text, 0, out->text_len);
    default:
        return false;
    }
}

bool is_new(const struct data_flat *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (out[i].key_len == out[n].key_len && !memcmp(out[i].key, out[n].key, out[n].key_len))
            return false;
    return true;
}

/* C++'s thread_local ends the process where there is no memory to note its destructor. */
pthread_key_t workers;
bool has_workers;

void delete_worker(void *of)
{
    delete static_cast<worker *>(of);
}

void create_workers()
{
    has_workers = pthread_key_create(&workers, delete_worker) == 0;
}

worker *this_worker()
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create_workers);
    if (!has_workers)
        return nullptr;
    worker *w = static_cast<worker *>(pthread_getspecific(workers));
    if (w || !(w = new (std::nothrow) worker))
        return w;
    if (pthread_setspecific(workers, w) == 0)
        return w;
    delete w;
    return nullptr;
}
} // namespace

int data_flat_parse(struct data_flat *out, size_t cap, const char *text, size_t len)
{
    worker *w = this_worker();
    dom::element root;
    dom::object object;
    size_t n = 0;
    if (len == 0 || len > UINT32_MAX / 2 || !w || !w->take(text, len) ||
        w->parser.parse(w->line, len, false).get(root) || root.get_object().get(object))
        return -1;
    const bool may_have_nul = memchr(text, '\\', len);
    for (auto field = object.begin(); field != object.end(); ++field) {
        if (n == cap)
            return -1;
        out[n] = data_flat{};
        out[n].key = field.key_c_str();
        out[n].key_len = field.key_length();
        if ((may_have_nul && memchr(out[n].key, 0, out[n].key_len)) || !is_new(out, n) ||
            !take_value(&out[n], field.value(), may_have_nul))
            return -1;
        n++;
    }
    return (int)n;
}
