/* Lists files and folders that are not whole yet, and removes them at the end of the process. */
#include "lib/io/temps.h"

#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/signals.h"

static const char *volatile files[S2S_MAX_TEMPS], *volatile folders[S2S_MAX_TEMPS];
static volatile pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A forked child must not remove its parent's files. */
void s2s_temps_remove_files(void)
{
    if (getpid() != owner)
        return;
    for (int i = 0; i < S2S_MAX_TEMPS; i++)
        if (files[i])
            unlink(files[i]);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    return remove(path);
}

static void remove_all(void)
{
    s2s_temps_remove_files();
    if (getpid() != owner)
        return;
    for (int i = 0; i < S2S_MAX_TEMPS; i++)
        if (folders[i])
            (void)nftw(folders[i], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void on_fatal_signal(int sig)
{
    s2s_temps_remove_files();
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Begins the list of this process: what a forked one finds there is its parent's. */
static void begin_list(void)
{
    if (owner == 0) {
        atexit(remove_all);
        at_quick_exit(remove_all);
    }
    for (int i = 0; i < S2S_MAX_TEMPS; i++)
        files[i] = folders[i] = NULL;
    owner = getpid();
}

int s2s_temp_add(const char *path, bool is_folder)
{
    int number = -1;
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        begin_list();
    s2s_catch_fatal_signals(on_fatal_signal); /* not if the program has handlers of its own */
    for (int i = 0; i < S2S_MAX_TEMPS && number < 0; i++)
        if (!files[i] && !folders[i])
            number = i;
    if (number >= 0)
        (is_folder ? folders : files)[number] = path;
    pthread_mutex_unlock(&lock);
    return number;
}

void s2s_temp_drop(int number)
{
    if (number < 0)
        return;
    pthread_mutex_lock(&lock);
    files[number] = folders[number] = NULL;
    pthread_mutex_unlock(&lock);
}
