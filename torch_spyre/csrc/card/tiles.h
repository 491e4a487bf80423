// Programs of KTIR: for whoever loads them.
#pragma once

#include "card/tiles/tile_program.h"
#include "card/tiles/tile_time.h"
