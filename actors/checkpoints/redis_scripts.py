"""What Redis does in one step: Lua scripts, each about the keys of one thread.

All keys of a thread carry its hash tag, so a cluster keeps them in one slot, and no script touches another thread. A script
that may grow the data is refused as a whole when memory is short; ``delete`` and ``fold`` may run then, as they make room.

Keys of a thread, in the order in which every script gets them:

1. ``thread``: a hash. ``id``; ``newest`` (checkpoint), ``first`` and ``position`` (of the oldest and the newest checkpoint),
   ``root`` (position of the newest snapshot), ``bytes``; ``token``, ``owner``, ``until`` (ms; the lease); ``deleted`` (ms; the
   tombstone); ``deletion`` (what the last one did); ``sequence`` (of the journal).
2. ``ids``: from a checkpoint's id to its position.
3. ``facts``: from position to the packed list of id, parent or false, root, base, created_at, metadata, size.
4. ``states``: from position to state.
5. ``journal``: from call and phase to sequence number, space, entry.
6. ``statics``: a set: content hashes of the texts that its states refer to.

A text is a hash of its own, in a slot of its own: ``text``, and ``mark`` while a collector means to delete it.
"""

from __future__ import annotations

from hashlib import sha1

NAMES = ("thread", "ids", "facts", "states", "journal", "statics")
TEXT = "text"

_PRELUDE = """#!lua {flags}
local thread, ids, facts, states, journal, statics = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local function get(name) return redis.call('HGET', thread, name) end
local function number(name) return tonumber(get(name) or '0') end
local function whole(value) return string.format('%.0f', value) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function held() return get('owner') and number('until') > now end
local cursor = 0
local function take() cursor = cursor + 1; return ARGV[cursor] end
local function pairs_of()
  local found = {{}}
  for n = 1, tonumber(take()) do found[n] = {{take(), take()}} end
  return found
end
local function list()
  local found = {{}}
  for n = 1, tonumber(take()) do found[n] = take() end
  return found
end
local function lease()
  return get('token') or '0', get('owner') or '', get('until') or '0', get('deleted') or '', whole(now)
end
local function refused(token)
  if token == 0 then return get('deleted') or held() end
  return token ~= number('token')
end
local function note(entries)
  for _, entry in ipairs(entries) do
    if redis.call('HEXISTS', journal, entry[1]) == 0 then
      local sequence = redis.call('HINCRBY', thread, 'sequence', 1)
      redis.call('HSET', journal, entry[1], whole(sequence) .. ' ' .. entry[2])
    end
  end
end
"""

# thread's id, then for each write: id, parent ('' or '=' and the id), kind ('record' stores only entries), base, created_at,
# metadata, state, how many it supersedes, the checkpoint before those ('' or '=' and the id), token, settles, entries, statics
_WRITE = """
local id = take()
local function below(save)
  local last = number('position')
  if save.supersedes == 0 then return last, number('root'), save.parent end
  local at = math.max(last - save.supersedes, 0)
  local fact = redis.call('HGET', facts, whole(at))
  local link = fact and cmsgpack.unpack(fact)
  if save.onto ~= (link and '=' .. link[1] or '') then return end
  for gone = at + 1, last do
    local lost = redis.call('HGET', facts, whole(gone))
    if lost then
      redis.call('HDEL', ids, cmsgpack.unpack(lost)[1])
      redis.call('HINCRBY', thread, 'bytes', -cmsgpack.unpack(lost)[7])
      redis.call('HDEL', facts, whole(gone))
      redis.call('HDEL', states, whole(gone))
    end
  end
  if not link then redis.call('HDEL', thread, 'first') end
  return at, link and link[3] or 0, save.onto
end
local function store(save)
  local position, root, parent = below(save)
  if not position then return false end
  position = position + 1
  if save.kind ~= 'delta' then root = position end
  parent = parent ~= '' and string.sub(parent, 2)
  local fact = {save.id, parent, root, tonumber(save.base), save.created, save.metadata, #save.state}
  redis.call('HSET', states, whole(position), save.state)
  redis.call('HSET', facts, whole(position), cmsgpack.pack(fact))
  redis.call('HSET', ids, save.id, whole(position))
  redis.call('HSET', thread, 'newest', save.id, 'position', whole(position), 'root', whole(root))
  redis.call('HSETNX', thread, 'first', whole(position))
  redis.call('HINCRBY', thread, 'bytes', #save.state)
  redis.call('HDEL', thread, 'deleted')
  for _, hash in ipairs(save.statics) do redis.call('SADD', statics, hash) end
  if save.settles then redis.call('DEL', journal) end
  return true
end
local function write(save)
  if save.kind ~= 'record' and redis.call('HEXISTS', ids, save.id) == 1 then return {'stored'} end
  if refused(save.token) then return {'stale', lease()} end
  if save.kind ~= 'record' then
    local newest = get('newest')
    if save.parent ~= (newest and '=' .. newest or '') then return {'conflict', newest} end
    if not store(save) then return {'misplaced'} end
  end
  redis.call('HSET', thread, 'id', id)
  note(save.entries)
  return {'stored'}
end
local outcomes = {}
while ARGV[cursor + 1] do
  outcomes[#outcomes + 1] = write({id = take(), parent = take(), kind = take(), base = take(), created = take(),
    metadata = take(), state = take(), supersedes = tonumber(take()), onto = take(), token = tonumber(take()),
    settles = take() == '1', entries = pairs_of(), statics = list()})
end
return outcomes
"""

# '' for the newest, '=' and a checkpoint's id, or '#' and how many to keep: the oldest of them, if there are older ones
_LOAD = """
local wanted = take()
local kind, name, position = string.sub(wanted, 1, 1), string.sub(wanted, 2), get('position')
if kind == '=' then position = redis.call('HGET', ids, name) end
if kind == '#' and position then
  local oldest = number('position') - tonumber(name) + 1
  position = oldest > number('first') and whole(oldest)
end
local token = get('token') or '0'
local noted = wanted == '' and redis.call('HVALS', journal) or {}
if not position then return {token, noted} end
local fact = redis.call('HGET', facts, position)
if not fact then return {token, noted, position} end
local chain = {}
for at = cmsgpack.unpack(fact)[3], tonumber(position) do
  local link = redis.call('HGET', facts, whole(at))
  chain[#chain + 1] = {link and whole(cmsgpack.unpack(link)[4]), redis.call('HGET', states, whole(at))}
end
return {token, noted, position, fact, chain, redis.call('SMEMBERS', statics)}
"""

# limit
_HISTORY = """
local found = {}
local last = number('position')
for at = last, math.max(number('first'), last - tonumber(take()) + 1), -1 do
  if at > 0 then found[#found + 1] = {whole(at), redis.call('HGET', facts, whole(at))} end
end
return found
"""

# id, owner, milliseconds, '1' to steal
_LEASE = """
local id, owner, milliseconds, steal = take(), take(), tonumber(take()), take() == '1'
local token = number('token')
if get('owner') ~= owner then
  if held() and not steal then return {'busy', lease()} end
  token = token + 1
end
local ends = whole(now + milliseconds)
redis.call('HSET', thread, 'id', id, 'owner', owner, 'until', ends, 'token', whole(token))
return {'taken', lease()}
"""

# owner, token
_RELEASE = """
if get('owner') == take() and get('token') == take() then redis.call('HDEL', thread, 'owner', 'until') end
return 1
"""

_INFO = """
local newest, first = get('position'), get('first')
if not newest then return false end
return {get('id'), newest, first, get('bytes'), held() and get('owner'), redis.call('HGET', facts, newest),
  redis.call('HGET', facts, first)}
"""

# id, name of this deletion (sent again it changes nothing), '' or milliseconds: only when nobody has a lease and the newest
# checkpoint's created_at is older than so many
_DELETE = """
local id, name, idle = take(), take(), take()
local count, size = string.match(get('deletion') or '', '^' .. name .. ' (%d+) (%d+)$')
if count then return {count, size} end
local newest = get('position')
if idle ~= '' then
  local fact = newest and redis.call('HGET', facts, newest)
  if not fact or held() or now - tonumber(cmsgpack.unpack(fact)[5]) * 1000 <= tonumber(idle) then return 0 end
end
local token, freed = number('token') + 1, get('bytes') or '0'
count = whole(newest and number('position') - number('first') + 1 or 0)
redis.call('DEL', thread, ids, facts, states, journal, statics)
redis.call('HSET', thread, 'id', id, 'token', whole(token), 'deleted', whole(now),
  'deletion', name .. ' ' .. count .. ' ' .. freed)
return {count, freed}
"""

# position, id and new state of the checkpoint that becomes the oldest
_FOLD = """
local keep, id, state = tonumber(take()), take(), take()
local fact = redis.call('HGET', facts, whole(keep))
if held() or not fact or cmsgpack.unpack(fact)[1] ~= id then return {'0', '0'} end
local before, count = number('bytes'), 0
for at = number('first'), keep - 1 do
  local gone = cmsgpack.unpack(redis.call('HGET', facts, whole(at)))
  redis.call('HINCRBY', thread, 'bytes', -gone[7])
  redis.call('HDEL', ids, gone[1])
  redis.call('HDEL', facts, whole(at))
  redis.call('HDEL', states, whole(at))
  count = count + 1
end
redis.call('HSET', thread, 'first', whole(keep))
for at = keep, number('position') do
  local link = cmsgpack.unpack(redis.call('HGET', facts, whole(at)))
  if link[3] > keep then break end
  link[3] = keep
  if at == keep then
    redis.call('HINCRBY', thread, 'bytes', #state - link[7])
    link[2], link[4], link[7] = false, 0, #state
    redis.call('HSET', states, whole(at), state)
  end
  redis.call('HSET', facts, whole(at), cmsgpack.pack(link))
end
redis.call('HSET', thread, 'root', whole(math.max(keep, number('root'))))
return {whole(count), whole(before - number('bytes'))}
"""

# milliseconds: how old a tombstone must be; '1' when checkpoints were folded. Answers whether a tombstone went, and the hashes
# that the thread still refers to.
_SWEEP = """
local age, folded = tonumber(take()), take() == '1'
for _, hash in ipairs(folded and redis.call('SMEMBERS', statics) or {}) do
  local used = false
  for _, at in ipairs(redis.call('HKEYS', states)) do
    used = used or string.find(redis.call('HGET', states, at), hash, 1, true)
  end
  if not used then redis.call('SREM', statics, hash) end
end
if get('deleted') and not get('newest') and not held() and now - number('deleted') > age
  and redis.call('EXISTS', journal) == 0 then
  return {redis.call('DEL', thread), {}}
end
return {0, redis.call('SMEMBERS', statics)}
"""

# About a text. Its content; a writer says that it is needed.
_PUT = """
redis.call('HSETNX', KEYS[1], 'text', ARGV[1])
redis.call('HDEL', KEYS[1], 'mark')
return 1
"""

# About a text. Whose mark; a collector is about to look whether anybody needs it.
_MARK = """
return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HSET', KEYS[1], 'mark', ARGV[1])
"""

# About a text. Whose mark; answers how many bytes went, false when somebody needs it after all.
_FREE = """
if redis.call('HGET', KEYS[1], 'mark') ~= ARGV[1] then return false end
local size = redis.call('HSTRLEN', KEYS[1], 'text')
redis.call('DEL', KEYS[1])
return size
"""


class Script:
    """A script as Redis gets it, and the name by which it is called again.

    Args:
        body: what it does.
        flags: what Redis may assume of it.
    """

    def __init__(self, body: str, flags: str = "") -> None:
        self.text = (_PRELUDE.format(flags=f"flags={flags}" if flags else "") + body).encode()
        # Not a secret: the name under which the server files a script.
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest()


WRITE = Script(_WRITE)
LOAD = Script(_LOAD, "no-writes")
HISTORY = Script(_HISTORY, "no-writes")
LEASE = Script(_LEASE)
RELEASE = Script(_RELEASE, "allow-oom")
INFO = Script(_INFO, "no-writes")
DELETE = Script(_DELETE, "allow-oom")
FOLD = Script(_FOLD, "allow-oom")
SWEEP = Script(_SWEEP, "allow-oom")
PUT = Script(_PUT)
MARK = Script(_MARK, "allow-oom")
FREE = Script(_FREE, "allow-oom")
