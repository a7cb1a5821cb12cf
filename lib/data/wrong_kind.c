/* Recognizes files that were given for others. */
#include "lib/data/wrong_kind.h"

#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"

/* A kind of file and what to do with it. */
struct guess {
    const char *what, *hint;
};

/* ---- files that are not lines of text ---- */

static const struct {
    size_t at, len;
    const char *bytes;
    struct guess guess;
} binaries[] = {
    {257, 5, "ustar", {"a tar", "--tars takes it, beside --manifest or --conversations"}},
    {0, 4, "PAR1", {"Parquet", "write its rows as JSON lines, e.g. pandas' to_json(lines=True)"}},
    {0, 6, "ARROW1", {"Arrow", "write its rows as JSON lines, e.g. datasets' to_json()"}},
    {0, 4, "PK\x03\x04", {"a zip archive", "unpack it"}},
    {0,
     6,
     "\x93NUMPY",
     {"a numpy array", "s2s-pack npy takes a packed SFT file; write other rows as JSON lines for "
                       "--ids"}},
    {0, 4, "RIFF", {"sound", "name it in a line of a manifest, as audio_filepath"}},
    {0, 4, "fLaC", {"sound", "name it in a line of a manifest, as audio_filepath"}},
    {0, 4, "OggS", {"sound", "name it in a line of a manifest, as audio_filepath"}},
    {0, 3, "ID3", {"sound", "name it in a line of a manifest, as audio_filepath"}},
    {0, 4, "\x28\xb5\x2f\xfd", {"compressed with zstd", "'pipe:zstd -dc FILE' reads it"}},
    {0,
     6,
     "\xfd"
     "7zXZ",
     {"compressed with xz", "'pipe:xz -dc FILE' reads it"}},
    {0, 3, "BZh", {"compressed with bzip2", "'pipe:bzip2 -dc FILE' reads it"}},
};

static bool is_stream(const struct s2s_lines *file)
{
    return file->len > 512 && !strcmp(file->data, "header.json");
}

static const struct guess *guess_binary(const struct s2s_lines *file)
{
    static const struct guess stream = {"a packed stream (.s2s)",
                                        "it needs no packing: s2s-shard and s2s-train take it"};
    for (size_t i = 0; i < sizeof binaries / sizeof *binaries; i++)
        if (file->len >= binaries[i].at + binaries[i].len &&
            !memcmp(file->data + binaries[i].at, binaries[i].bytes, binaries[i].len))
            return i == 0 && is_stream(file) ? &stream : &binaries[i].guess;
    return NULL;
}

/* ---- text that is not one object a line ---- */

/* Length of the white space in front. */
static size_t indent_of(const struct s2s_line *line)
{
    size_t n = 0;
    while (n < line->len && memchr(" \t", line->text[n], 2))
        n++;
    return n;
}

/* Is it a config of a blend? Its list may come behind other keys. */
static bool is_config(const struct s2s_lines *file, const char *text, size_t len)
{
    enum { LOOKED_AT = 4096 };
    const size_t n = file->len < LOOKED_AT ? file->len : LOOKED_AT;
    return (len > 6 && !memcmp(text, "- type", 6)) || memmem(file->data, n, "input_cfg:", 10);
}

/* One line may be damaged; a second of its kind tells that all are so. */
static bool is_second_alike(const struct s2s_lines *file, const struct s2s_line *first)
{
    struct s2s_line second = *first;
    return s2s_lines_next(file, &second) && indent_of(&second) < second.len &&
           second.text[indent_of(&second)] != '{';
}

static bool is_printable(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

static const struct guess *guess_text(const struct s2s_lines *file, const struct s2s_line *line)
{
    static const struct guess array = {
        "a JSON array, where each line should be one object (JSON lines)",
        "jq -c '.[]' FILE makes JSON lines of it"};
    static const struct guess pretty = {
        "JSON that spreads over lines, where each line should be one object (JSON lines)",
        "jq -c . FILE makes JSON lines of it"};
    static const struct guess config = {"a config", "--input-cfg takes a blend"};
    static const struct guess xml = {"XML or HTML", "is it what was to be downloaded?"};
    static const struct guess lines = {"lines that are no JSON", "--text takes lines of text"};
    const char *text = line->text + indent_of(line);
    const size_t len = line->len - indent_of(line);
    if (len == 0)
        return NULL;
    if (*text == '[')
        return &array;
    if (*text == '{') {
        /* an object that goes on in the next line, where a cut one has the next object */
        struct s2s_line second = *line;
        if (!s2s_lines_next(file, &second))
            return NULL;
        const size_t white = indent_of(&second);
        return white < second.len && second.text[white] != '{' ? &pretty : NULL;
    }
    if (*text == '<')
        return &xml;
    if (is_config(file, text, len))
        return &config;
    return is_printable(text, len) && is_second_alike(file, line) ? &lines : NULL;
}

/* ---- objects of other kinds ---- */

/* What kind of line an object is, by its keys; -1: not known. */
static int kind_of(const json_t *object)
{
    const json_t *turns = json_object_get(object, "conversations");
    const json_t *turn = json_array_get(turns, 0);
    const char *from = json_string_value(json_object_get(turn, "from"));
    if (json_object_get(object, "input_ids"))
        return S2S_LINES_IDS;
    if (json_object_get(object, "audio_filepath"))
        return S2S_LINES_NEMO;
    if (json_object_get(object, "supervisions") || json_object_get(object, "recording") ||
        json_object_get(object, "tracks"))
        return S2S_LINES_CUTS;
    if (turns && (json_object_get(object, "sound") || json_object_get(object, "ori_sound") ||
                  (from && !strcmp(from, "human"))))
        return S2S_LINES_SHARE_GPT;
    if (turns)
        return json_object_get(turn, "type") ? S2S_LINES_CONVERSATION : S2S_LINES_SFT;
    if (json_object_get(object, "messages") ||
        (json_object_get(object, "input") && json_object_get(object, "output")) ||
        (json_object_get(object, "prompt") && json_object_get(object, "completion")))
        return S2S_LINES_SFT;
    return -1;
}

static const struct guess kinds[] = {
    [S2S_LINES_NEMO] = {"a NeMo manifest", "--manifest takes it"},
    [S2S_LINES_CUTS] = {"Lhotse cuts", "--cuts takes them"},
    [S2S_LINES_IDS] = {"tokenized rows", "--ids takes them"},
    [S2S_LINES_CONVERSATION] = {"conversations of NeMo", "--conversations takes them"},
    [S2S_LINES_SHARE_GPT] = {"conversations of ShareGPT", "--share-gpt takes them"},
    [S2S_LINES_SFT] = {"conversations of text", "--sft takes them"},
    [S2S_LINES_TEXT_JSONL] = {"lines with a text", "--text-jsonl takes them"},
};

static const struct guess recordings = {"recordings of Lhotse, without what is said",
                                        "make cuts of them: CutSet.from_manifests()"};
static const struct guess supervisions = {"supervisions of Lhotse, without their recordings",
                                          "make cuts of them: CutSet.from_manifests()"};
static const struct guess summary = {"a config or a summary of one object, not a list of samples",
                                     "each line should be one sample"};

static const struct guess *guess_object(const json_t *object, enum s2s_lines_kind wanted)
{
    const int kind = kind_of(object);
    const bool has_text = json_is_string(json_object_get(object, "text"));
    if (json_object_get(object, "input_cfg"))
        return &summary;
    /* any object may have a text under some key, but for lists of turns */
    if (wanted == S2S_LINES_TEXT_JSONL && (has_text || (!json_object_get(object, "conversations") &&
                                                        !json_object_get(object, "messages"))))
        return NULL;
    if (kind == (int)wanted)
        return NULL;
    /* SFT and NeMo's conversations have much in common */
    if (kind == S2S_LINES_SFT && wanted == S2S_LINES_CONVERSATION &&
        json_object_get(object, "conversations"))
        return NULL;
    if (kind >= 0)
        return &kinds[kind];
    if (json_object_get(object, "sources") && json_object_get(object, "num_samples"))
        return &recordings;
    if (json_object_get(object, "recording_id"))
        return &supervisions;
    if (wanted == S2S_LINES_NEMO && json_object_get(object, "duration"))
        return NULL; /* it lacks a key */
    return json_object_size(object) <= 3 && has_text ? &kinds[S2S_LINES_TEXT_JSONL] : NULL;
}

/* Lines of text may be any; but whoever trains on the JSON of a list of samples is told. */
static void warn_of_json(const struct s2s_lines *file)
{
    struct s2s_line line = {.number = 0};
    if (!s2s_lines_next(file, &line) || line.len == 0 || *line.text != '{')
        return;
    json_t *object = json_loadb(line.text, line.len, 0, NULL);
    const struct guess *guess =
        json_is_object(object) ? guess_object(object, S2S_LINES_TEXT) : NULL;
    if (guess)
        s2s_warn("data", "%s: its lines are taken as text, JSON and all, and look like %s (%s)",
                 file->path, guess->what, guess->hint);
    json_decref(object);
}

int data_check_kind(const struct s2s_lines *file, enum s2s_lines_kind kind, struct s2s_error *err)
{
    struct s2s_line line = {.number = 0};
    const struct guess *guess = guess_binary(file);
    kind = kind == S2S_LINES_TURNS   ? S2S_LINES_CUTS
           : kind == S2S_LINES_PAIRS ? S2S_LINES_TEXT
                                     : kind;
    if (!guess && kind != S2S_LINES_TEXT && s2s_lines_next(file, &line)) {
        json_t *object = json_loadb(line.text, line.len, 0, NULL);
        guess = json_is_object(object) ? guess_object(object, kind) : guess_text(file, &line);
        json_decref(object);
    }
    if (!guess && kind == S2S_LINES_TEXT)
        warn_of_json(file);
    if (!guess)
        return 0;
    int rc = s2s_error_set(err, S2S_E_FORMAT, "%s: is %s", file->path, guess->what);
    if (kind != S2S_LINES_TEXT && kinds[kind].what && guess->what[0])
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: %s expected, found %s", file->path,
                           kinds[kind].what, guess->what);
    return s2s_error_hint(err, rc, "%s", guess->hint);
}
