#pragma once

#include <map>
#include <string>

#include "ops/shm/chooser.h"

namespace kolo {

/// ShmKnown::tables as a text of lines: what it is, the version of kolo, the machine for which it holds, then a row for
/// each choice, and how many these are.
std::string text_of_tables(const std::map<int, ShmTable>& tables, const std::string& machine);

/// Back again, of one such text or several, one behind the other: where they differ the last one counts. Throws
/// Error{invalid_argument}, which says why the text is not used: it is none of these, or it is of another machine or
/// version, or damaged.
std::map<int, ShmTable> tables_of_text(const std::string& text, const std::string& machine);

}  // namespace kolo
