/* Mapped files that are truncated, or whose disk fails, while they are read. */
#ifndef S2S_BASE_BUS_ERROR_H
#define S2S_BASE_BUS_ERROR_H

/* From now on SIGBUS ends the program with a message that names the file, and status 1; outputs
 * that were begun are removed as at any exit. program is kept. */
void s2s_catch_bus_errors(const char *program);

#endif
