package backend

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"
)

// Limits of the answers that are kept.
const (
	cacheBytes = 64 << 20
	cacheOwner = cacheBytes / 4 // of one owner
	cacheAge   = time.Hour
)

// cache keeps answers by the content of their requests. Owners never get each other's.
type cache struct {
	now func() time.Time

	mu     sync.Mutex
	at     map[[32]byte]*list.Element
	order  list.List // of *kept, the one that was used last first
	size   int
	owners map[string]int // bytes of each
}

type kept struct {
	key   [32]byte
	owner string
	res   Response
	size  int
	at    time.Time
}

// keyOf names a request of an owner to a server.
func keyOf(owner, server string, r *Request) [32]byte {
	b, err := json.Marshal(struct {
		Owner, Server string
		Request       *Request
	}{owner, server, r})
	if err != nil {
		panic("backend: encode a request: " + err.Error()) // its schema was checked before
	}
	return sha256.Sum256(b)
}

func (c *cache) get(key [32]byte) (Response, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at[key]
	if e == nil {
		return Response{}, false
	}
	k := e.Value.(*kept)
	if c.now().Sub(k.at) > cacheAge {
		c.drop(e)
		return Response{}, false
	}
	c.order.MoveToFront(e)
	res := k.res
	res.Cached = true
	return res, true
}

func (c *cache) put(key [32]byte, owner string, res Response) {
	size := 500 + len(res.Text)
	for _, t := range res.Tokens {
		size += 60 * (1 + len(t.Top))
	}
	if size > cacheOwner/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at, c.owners = map[[32]byte]*list.Element{}, map[string]int{}
	}
	if e := c.at[key]; e != nil {
		c.drop(e)
	}
	c.at[key] = c.order.PushFront(&kept{key, owner, res, size, c.now()})
	c.size += size
	c.owners[owner] += size
	for e := c.order.Back(); e != nil && (c.size > cacheBytes || c.owners[owner] > cacheOwner); {
		before := e.Prev()
		if c.size > cacheBytes || e.Value.(*kept).owner == owner {
			c.drop(e)
		}
		e = before
	}
}

func (c *cache) drop(e *list.Element) {
	k := c.order.Remove(e).(*kept)
	delete(c.at, k.key)
	c.size -= k.size
	if c.owners[k.owner] -= k.size; c.owners[k.owner] <= 0 {
		delete(c.owners, k.owner)
	}
}
