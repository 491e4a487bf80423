// What several cards need to work together: for whoever makes groups of them.
#pragma once

#include "card/clock/collective_time.h"
#include "card/exchange/channels.h"
#include "card/exchange/collective.h"
#include "card/exchange/shared_group.h"
#include "card/exchange/shared_segment.h"
