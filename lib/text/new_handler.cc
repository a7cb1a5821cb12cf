/* What `new` does where memory is out: it ends the program with a message, as s2s_xmalloc does. */
#include <new>

#include "lib/text/sentencepiece.h"

extern "C" void s2s_no_memory(void); /* lib/base/mem.h */

void text_end_without_memory(void)
{
    std::set_new_handler(s2s_no_memory);
}
