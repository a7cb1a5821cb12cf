/* Checks files one after another, and prints what was found. */
#include "tools/validate/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/num.h"
#include "lib/base/threads.h"
#include "lib/io/outfile.h"
#include "lib/io/there.h"

enum { MAX_WORLDS = 100000 };

static void add_world(struct check_options *opt, int64_t world)
{
    s2s_grow(&opt->worlds, opt->n_worlds, &opt->cap_worlds, sizeof *opt->worlds);
    opt->worlds[opt->n_worlds++] = world;
}

void check_parse_worlds(struct argp_state *state, struct check_options *opt, const char *arg)
{
    char *text = s2s_xstrdup(arg), *rest = text;
    const char *dots = strstr(arg, "..");
    opt->n_worlds = 0;
    if (dots) {
        text[dots - arg] = 0;
        int64_t first = s2s_arg_i64(state, "world-size", text, 1, INT32_MAX);
        int64_t last = s2s_arg_i64(state, "world-size", dots + 2, first, INT32_MAX);
        if (last - first >= MAX_WORLDS)
            argp_error(state, "--world-size: more than %d sizes", MAX_WORLDS);
        for (int64_t w = first; w <= last; w++)
            add_world(opt, w);
    } else {
        for (char *one; (one = strsep(&rest, ",")) != NULL;)
            add_world(opt, s2s_arg_i64(state, "world-size", one, 1, INT32_MAX));
    }
    free(text);
}

/* ---- inputs ---- */

/* Files to check, and the folders they came from. */
struct paths {
    char **items;
    size_t n, cap;
    struct folder_id {
        dev_t device;
        ino_t inode;
    } * seen;
    size_t n_seen, cap_seen;
};

static void add_path(struct paths *paths, char *taken)
{
    s2s_grow(&paths->items, paths->n, &paths->cap, sizeof *paths->items);
    paths->items[paths->n++] = taken;
}

/* Whether a folder is met for the first time: links may lead back to it. */
static bool is_new_folder(struct paths *paths, const struct stat *st)
{
    for (size_t i = 0; i < paths->n_seen; i++)
        if (paths->seen[i].device == st->st_dev && paths->seen[i].inode == st->st_ino)
            return false;
    s2s_grow(&paths->seen, paths->n_seen, &paths->cap_seen, sizeof *paths->seen);
    paths->seen[paths->n_seen++] = (struct folder_id){st->st_dev, st->st_ino};
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_config(const char *name)
{
    static const char *const ends[] = {".yaml", ".yml", ".sh", ".sbatch"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (len > strlen(ends[i]) && !strcmp(name + len - strlen(ends[i]), ends[i]))
            return true;
    return false;
}

/* The configs in a folder and below, sorted; hidden ones are passed over. A folder that cannot be
 * read stands for itself: reading it will say why. */
static void add_folder(struct paths *paths, const char *folder, int depth)
{
    struct paths found = {0};
    DIR *dir = opendir(folder);
    if (!dir) {
        add_path(paths, s2s_xstrdup(folder));
        return;
    }
    for (struct dirent *entry; errno = 0, (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.')
            add_path(&found,
                     s2s_xasprintf("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/",
                                   entry->d_name));
    if (errno != 0)
        add_path(paths, s2s_xstrdup(folder));
    closedir(dir);
    if (found.n)
        qsort(found.items, found.n, sizeof *found.items, by_text);
    for (size_t i = 0; i < found.n; i++) {
        struct stat st;
        bool there = stat(found.items[i], &st) == 0;
        if (there && S_ISDIR(st.st_mode) && depth < 64 && is_new_folder(paths, &st))
            add_folder(paths, found.items[i], depth + 1);
        if ((there ? S_ISREG(st.st_mode) : s2s_is_there(AT_FDCWD, found.items[i])) &&
            is_config(found.items[i]))
            add_path(paths, found.items[i]);
        else
            free(found.items[i]);
    }
    free(found.items);
}

static void release_paths(struct paths *paths)
{
    for (size_t i = 0; i < paths->n; i++)
        free(paths->items[i]);
    free(paths->items);
    free(paths->seen);
}

/* ---- checking ---- */

/* "path:line:column: why" taken apart: the place goes to failed_at, the rest stays */
static void take_failure(struct check_file *file, const char *text)
{
    const char *why = text;
    size_t len = strlen(file->path);
    int line = 0, column = 0, used = 0;
    if (!strncmp(text, file->path, len) && text[len] == ':')
        why = text + len;
    else if (!strncmp(text, "stdin", 5))
        why = text + 5;
    if (sscanf(why, ":%d:%d: %n", &line, &column, &used) == 2 && used) {
        file->failed_at.line = line;
        file->failed_at.column = column;
        why += used;
    } else {
        why += strspn(why, ": ");
    }
    file->failure = s2s_xstrdup(why);
}

static void keep_failure(struct check_file *file, const struct s2s_error *err)
{
    take_failure(file, err->text);
    if (err->hint[0]) {
        char *both = s2s_xasprintf("%s; %s", file->failure, err->hint);
        free(file->failure);
        file->failure = both;
    }
}

static const char *shown_path(const char *path)
{
    return strcmp(path, "-") != 0 ? path : "stdin";
}

/* Renders what needs the config's text and lets the config go: a thousand of them at once would
 * fill the memory. */
static void settle(struct check_file *file, const struct check_options *opt)
{
    if (opt->format == CHECK_TEXT && opt->n_worlds <= 1) {
        bool color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
        s2s_report_text(&file->text, &file->report, color, opt->show_skipped);
        if (opt->rules.memory)
            s2s_report_memory(&file->text, &file->report);
        if (file->report.resolved)
            s2s_conf_dump(&file->text, file->report.resolved, true);
    }
    if (!file->report.resolved || opt->format != CHECK_JSON)
        s2s_report_slim(&file->report);
}

static void check_file(struct check_file *file, const struct check_options *opt)
{
    const struct s2s_rules_options *rules = &opt->rules;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf = NULL;
    int rc = s2s_rules_read(&conf, file->path, opt->also, &err);
    if (rc >= 0)
        rc = s2s_rules_check(&file->report, conf, shown_path(file->path), rules, &err);
    file->foreign = rc == S2S_E_UNSUPPORTED;
    file->closed = rc == S2S_E_OPEN;
    if (rc < 0)
        keep_failure(file, &err);
    else
        settle(file, opt);
}

static void release_file(struct check_file *file)
{
    s2s_buf_release(&file->text);
    s2s_report_release(&file->report);
    free(file->path);
    free(file->failure);
}

struct files {
    struct check_file *items;
    size_t n, cap;
};

static void release_files(struct files *files)
{
    for (size_t i = 0; i < files->n; i++)
        release_file(&files->items[i]);
    free(files->items);
}

/* A config at every world size of the table. Takes conf (NULL: rc and err say why). */
static void check_worlds(struct files *files, const char *path, struct s2s_conf *conf, int rc,
                         struct s2s_error err, const struct check_options *opt)
{
    for (size_t i = 0; i < opt->n_worlds; i++) {
        struct s2s_rules_options rules = opt->rules;
        s2s_grow(&files->items, files->n, &files->cap, sizeof *files->items);
        struct check_file *file = &files->items[files->n++];
        *file = (struct check_file){.path = s2s_xstrdup(path)};
        rules.world_size = opt->worlds[i];
        if (rc >= 0)
            rc =
                s2s_rules_check(&file->report, s2s_conf_copy(conf), shown_path(path), &rules, &err);
        if (rc < 0) {
            keep_failure(file, &err);
            break;
        }
        settle(file, opt);
    }
    s2s_conf_free(conf);
}

/* --argv: the words behind it are the config */
static void check_argv(struct files *files, const struct check_options *opt)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct check_options own = *opt;
    struct s2s_conf *conf = s2s_rules_read_argv((char *const *)opt->inputs, opt->n_inputs);
    own.rules.dialect =
        s2s_dialect_detect(conf) == S2S_DIALECT_HET ? S2S_DIALECT_HET : S2S_DIALECT_MLM;
    if (opt->n_worlds > 1) {
        check_worlds(files, "command line", conf, 0, err, &own);
        return;
    }
    struct check_file file = {.path = s2s_xstrdup("command line")};
    if (s2s_rules_check(&file.report, conf, file.path, &own.rules, &err) < 0)
        keep_failure(&file, &err);
    else
        settle(&file, opt);
    s2s_grow(&files->items, files->n, &files->cap, sizeof *files->items);
    files->items[files->n++] = file;
}

struct job {
    struct files *files;
    const struct check_options *opt;
};

static void check_one(void *ctx, size_t i, int worker)
{
    struct job *job = ctx;
    (void)worker;
    check_file(&job->files->items[i], job->opt);
}

/* Checks files[first..] on all threads; a thread is worth it from a few files on. */
static void check_all(struct files *files, const struct check_options *opt)
{
    enum { FILES_A_THREAD = 8 };
    struct job job = {files, opt};
    size_t most = 1 + files->n / FILES_A_THREAD, n_rules = 0;
    s2s_rules(&n_rules); /* the list is made once, before there are threads */
    s2s_parallel_for(files->n, (size_t)opt->common.jobs < most ? opt->common.jobs : (int)most,
                     check_one, &job);
}

/* a folder holds much that is no config of a dialect: that is no failure there */
static void drop_others(struct files *files)
{
    size_t kept = 0;
    for (size_t i = 0; i < files->n; i++) {
        struct check_file *file = &files->items[i];
        if (file->of_folder && !file->closed &&
            (file->foreign || (file->failure && !file->failed_at.line && !file->report.dialect)))
            release_file(file);
        else
            files->items[kept++] = *file;
    }
    files->n = kept;
}

static void collect(struct files *files, const struct check_options *opt)
{
    if (opt->argv)
        check_argv(files, opt);
    for (size_t i = 0; i < opt->n_inputs && !opt->argv; i++) {
        struct paths paths = {0};
        struct stat st;
        bool folder = strcmp(opt->inputs[i], "-") != 0 && stat(opt->inputs[i], &st) == 0 &&
                      S_ISDIR(st.st_mode);
        if (!folder)
            add_path(&paths, s2s_xstrdup(opt->inputs[i]));
        else if (is_new_folder(&paths, &st))
            add_folder(&paths, opt->inputs[i], 0);
        for (size_t k = 0; k < paths.n; k++) {
            if (opt->n_worlds > 1) {
                struct s2s_error err = S2S_ERROR_INIT;
                struct s2s_conf *conf = NULL;
                int rc = s2s_rules_read(&conf, paths.items[k], opt->also, &err);
                check_worlds(files, paths.items[k], conf, rc, err, opt);
                continue;
            }
            s2s_grow(&files->items, files->n, &files->cap, sizeof *files->items);
            files->items[files->n++] = (struct check_file){.path = s2s_xstrdup(paths.items[k]),
                                                           .of_folder = folder || opt->skip_others};
        }
        release_paths(&paths);
    }
    if (!opt->argv && opt->n_worlds <= 1) {
        check_all(files, opt);
        drop_others(files);
    }
}

static int exit_status(const struct check_file *files, size_t n, bool strict)
{
    int status = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_report *r = &files[i].report;
        if (files[i].failure || r->broken)
            return 2;
        if (r->n_errors || (strict && r->n_warnings))
            status = 1;
    }
    return status;
}

/* ---- output ---- */

/* Rules of a file that could not be judged because nobody says how many ranks there are. */
static size_t n_without_world(const struct s2s_report *report)
{
    size_t n = 0;
    for (size_t i = 0; report->world_size == 0 && i < report->n_skipped; i++)
        n += !strcmp(report->skipped[i].unknown, "world") ||
             !strcmp(report->skipped[i].unknown, "dp");
    return n;
}

static void format_text(struct s2s_buf *buf, const struct check_file *files, size_t n,
                        const struct check_options *opt)
{
    size_t n_errors = 0, n_warnings = 0, n_skipped = 0, n_need_world = 0;
    for (size_t i = 0; i < n; i++) {
        n_need_world += n_without_world(&files[i].report);
        n_errors += files[i].report.n_errors;
        n_warnings += files[i].report.n_warnings;
        n_skipped += files[i].report.n_skipped;
        s2s_buf_add(buf, files[i].text.data ? files[i].text.data : "", files[i].text.len);
    }
    if (opt->common.verbosity > 0 || n_errors + n_warnings > 0)
        s2s_buf_printf(buf, "%zu file%s: %zu error%s, %zu warning%s; %zu rules not evaluated%s\n",
                       n, n == 1 ? "" : "s", n_errors, n_errors == 1 ? "" : "s", n_warnings,
                       n_warnings == 1 ? "" : "s", n_skipped,
                       n_skipped && !opt->show_skipped ? " (--show-skipped)" : "");
    if (n_need_world && opt->common.verbosity >= 0)
        s2s_buf_printf(buf,
                       "%zu rule%s not judged, as the number of ranks is not known: give it with "
                       "--world-size N\n",
                       n_need_world, n_need_world == 1 ? " was" : "s were");
}

/* Files that could not be read go to stderr whatever the format. */
static void say_failures(const struct check_file *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct s2s_conf_place *at = &files[i].failed_at;
        const char *path = strcmp(files[i].path, "-") != 0 ? files[i].path : "stdin";
        if (files[i].failure && at->line)
            fprintf(stderr, "s2s-check: %s:%d:%d: %s\n", path, at->line, at->column,
                    files[i].failure);
        else if (files[i].failure)
            fprintf(stderr, "s2s-check: %s: %s\n", path, files[i].failure);
    }
}

static int write_out(const struct check_options *opt, const struct s2s_buf *buf,
                     struct s2s_error *err)
{
    struct s2s_outfile *out = NULL;
    int rc =
        s2s_outfile_spares_each(opt->common.out, opt->inputs, opt->argv ? 0 : opt->n_inputs, err);
    if (rc == 0)
        rc = s2s_outfile_open(&out, opt->common.out, err);
    if (rc < 0)
        return rc;
    rc = s2s_outfile_write(out, buf->data ? buf->data : "", buf->len, err);
    if (rc < 0) {
        s2s_outfile_abort(out);
        return rc;
    }
    return s2s_outfile_commit(out, err);
}

/* The first error that has to do with the number of ranks, or with anything else. */
static const struct s2s_finding *first_error(const struct s2s_report *report, bool about_world)
{
    for (size_t i = 0; i < report->n_findings; i++) {
        const struct s2s_finding *f = &report->findings[i];
        bool about = s2s_rule_uses(f->rule, "world") || s2s_rule_uses(f->rule, "dp") ||
                     s2s_rule_uses(f->rule, "gbs");
        if (f->severity == S2S_SEVERITY_ERROR && about == about_world)
            return f;
    }
    return NULL;
}

/* One size of the table: legal or not, and how the ranks are used, or the rule that says so. */
static void add_world_row(struct s2s_buf *buf, const struct s2s_report *r,
                          const struct s2s_finding *f)
{
    s2s_buf_printf(buf, "%8lld  %s", (long long)r->world_size, f ? "no" : "yes");
    if (f)
        s2s_buf_printf(buf, "     %-11s  %s", f->rule->id, f->message);
    else if (r->dp)
        s2s_buf_printf(buf, "    dp %lld", (long long)r->dp);
    if (!f && r->dp && r->n_microbatches)
        s2s_buf_printf(buf, ", %lld microbatch%s a step", (long long)r->n_microbatches,
                       r->n_microbatches == 1 ? "" : "es");
    s2s_buf_putc(buf, '\n');
}

/* The table of a file, files[0..n): then the legal sizes in a line, and what is wrong at any size.
 */
static void format_table(struct s2s_buf *buf, const struct check_file *files, size_t n)
{
    size_t n_legal = 0;
    s2s_buf_printf(buf, "%s\n   ranks  legal  rule\n", shown_path(files[0].path));
    for (size_t i = 0; i < n; i++)
        if (!files[i].failure)
            add_world_row(buf, &files[i].report, first_error(&files[i].report, true));
    for (size_t i = 0; i < n; i++)
        if (!files[i].failure && !first_error(&files[i].report, true))
            s2s_buf_printf(buf, "%s%lld",
                           n_legal++ ? ", " : "legal: ", (long long)files[i].report.world_size);
    s2s_buf_puts(buf, n_legal ? "\n" : "legal: none of these\n");
    const struct s2s_finding *other = first_error(&files[n - 1].report, false);
    if (other)
        s2s_buf_printf(buf, "at any size: %s [%s]\n", other->message, other->rule->id);
}

static void format_worlds(struct s2s_buf *buf, const struct files *files)
{
    for (size_t first = 0, end; first < files->n; first = end) {
        for (end = first + 1; end < files->n; end++)
            if (strcmp(files->items[end].path, files->items[first].path) != 0)
                break;
        if (!files->items[first].failure)
            format_table(buf, &files->items[first], end - first);
    }
}

static const char *nearest_rule(const char *id)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    const char **names = s2s_xcalloc(n + 1, sizeof *names);
    for (size_t i = 0; i < n; i++)
        names[i] = rules[i]->id;
    const char *near = s2s_conf_nearest(id, names);
    free(names);
    return near;
}

static int run_documentation(const struct check_options *opt, struct s2s_error *err)
{
    struct s2s_buf buf = S2S_BUF_INIT;
    if (opt->explain) {
        const struct s2s_rule *rule = s2s_rule_by_id(opt->explain);
        if (!rule) {
            const char *near = nearest_rule(opt->explain);
            s2s_error_set(err, S2S_E_ARG, "--explain: no rule '%s'", opt->explain);
            return near ? s2s_error_hint(err, S2S_E_ARG, "did you mean %s?", near)
                        : s2s_error_hint(err, S2S_E_ARG, "--list names them all");
        }
        if (opt->format == CHECK_MARKDOWN)
            check_page(&buf, rule);
        else if (opt->format == CHECK_JSON)
            check_list(&buf, true, rule->id);
        else
            check_explain(&buf, rule);
    } else if (opt->format == CHECK_MARKDOWN) {
        check_page(&buf, NULL);
    } else {
        check_list(&buf, opt->format == CHECK_JSON, NULL);
    }
    int rc = write_out(opt, &buf, err);
    s2s_buf_release(&buf);
    return rc;
}

static void format_all(struct s2s_buf *buf, const struct files *files,
                       const struct check_options *opt)
{
    switch (opt->format) {
    case CHECK_JSON:
        check_format_json(buf, files->items, files->n, opt->rules.memory);
        break;
    case CHECK_SARIF:
        check_format_sarif(buf, files->items, files->n);
        break;
    case CHECK_GITHUB:
        check_format_github(buf, files->items, files->n);
        break;
    case CHECK_JUNIT:
        check_format_junit(buf, files->items, files->n);
        break;
    default:
        if (opt->n_worlds > 1)
            format_worlds(buf, files);
        else
            format_text(buf, files->items, files->n, opt);
    }
}

static int run_files(const struct check_options *opt, struct s2s_error *err)
{
    struct files files = {0};
    struct s2s_buf buf = S2S_BUF_INIT;
    collect(&files, opt);
    say_failures(files.items, files.n);
    format_all(&buf, &files, opt);
    int rc = write_out(opt, &buf, err);
    rc = rc < 0 ? rc : exit_status(files.items, files.n, opt->strict);
    release_files(&files);
    s2s_buf_release(&buf);
    return rc;
}

/* The common names of --previous, under the same assumptions but its own values. */
static int read_previous(struct s2s_report *report, const struct check_options *opt,
                         struct s2s_error *err)
{
    struct s2s_rules_options rules = opt->rules;
    struct s2s_conf *conf = NULL;
    rules.sets = NULL;
    rules.resolve = true;
    int rc = s2s_rules_read(&conf, opt->previous, opt->also, err);
    if (rc >= 0)
        rc = s2s_rules_check(report, conf, shown_path(opt->previous), &rules, err);
    return rc < 0 ? s2s_error_add(err, S2S_E_OPEN, "--previous") : 0;
}

int check_run(const struct check_options *opt, struct s2s_error *err)
{
    struct check_options own = *opt;
    struct s2s_conf *model = NULL;
    if (opt->list || opt->explain)
        return run_documentation(opt, err);
    if (opt->model_config) {
        int rc = s2s_conf_read(&model, opt->model_config, S2S_CONF_JSON, err);
        if (rc < 0)
            return rc == S2S_E_OPEN ? rc : s2s_error_add(err, S2S_E_OPEN, "--model-config");
        own.rules.model_config = model;
    }
    struct s2s_report previous = S2S_REPORT_INIT;
    int rc = opt->previous ? read_previous(&previous, &own, err) : 0;
    own.rules.previous = previous.resolved;
    if (opt->n_worlds == 1)
        own.rules.world_size = opt->worlds[0];
    if (rc >= 0)
        rc = run_files(&own, err);
    s2s_report_release(&previous);
    s2s_conf_free(model);
    return rc;
}
