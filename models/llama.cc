#include "models/llama.h"
