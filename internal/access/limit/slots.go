package limit

import "container/list"

// slots are the places of one session, context or tool, or of the host, with those who
// wait for one. Those of tools and of the host are divided among principals, so
// that the calls which wait are those of principals at their share. It is guarded
// by Queue.mu.
type slots struct {
	division
	waiting    int
	principals ring[Holder, *ring[string, *list.List]] // then sessions, then passes in the order they came
}

// tryAcquire takes a slot if one is free and no call waits for it.
func (s *slots) tryAcquire(h Holder) bool {
	if s.waiting > 0 && (s.plain || s.principals.has(h)) {
		return false
	}
	return s.acquire(h, 1)
}

// join lets a pass wait.
func (s *slots) join(p *Pass) {
	sessions := s.principals.getOrCreate(
		p.who.Holder,
		func() *ring[string, *list.List] { return &ring[string, *list.List]{} },
	)
	p.place = sessions.getOrCreate(p.who.session, list.New).PushBack(p)
	p.at = s
	s.waiting++
}

// nextPass removes and returns the pass whose turn it is, with the slot that is free
// for it; nil if none waits that may have one.
func (s *slots) nextPass() *Pass {
	if s.waiting == 0 || s.inUse() >= s.total {
		return nil
	}
	principal, sessions, ok := s.principals.turn(func(h Holder) bool { return s.acquire(h, 1) })
	if !ok {
		return nil
	}
	session, line, _ := sessions.turn(func(string) bool { return true })
	p := line.Remove(line.Front()).(*Pass)
	s.left(p, principal, session)
	return p
}

// removePass takes out a pass that waits no longer.
func (s *slots) removePass(p *Pass) {
	sessions := s.principals.lookup(p.who.Holder)
	line := sessions.lookup(p.who.session)
	line.Remove(p.place)
	s.left(p, p.who.Holder, p.who.session)
}

// left tidies up behind a pass that was taken out.
func (s *slots) left(p *Pass, principal Holder, session string) {
	p.at, p.place = nil, nil
	s.waiting--
	sessions := s.principals.lookup(principal)
	if sessions.lookup(session).Len() == 0 {
		sessions.drop(session)
	}
	if sessions.len() == 0 {
		s.principals.drop(principal)
	}
}

// ring holds values by key and gives each its turn.
type ring[K comparable, V any] struct {
	by    map[K]*list.Element // of ringEntry[K, V]
	order list.List           // whose turn it is next in front
}

type ringEntry[K comparable, V any] struct {
	key   K
	value V
}

// getOrCreate finds a value or makes it; a new one has its turn after all others.
func (r *ring[K, V]) getOrCreate(key K, create func() V) V {
	if e := r.by[key]; e != nil {
		return e.Value.(ringEntry[K, V]).value
	}
	if r.by == nil {
		r.by = map[K]*list.Element{}
	}
	v := create()
	r.by[key] = r.order.PushBack(ringEntry[K, V]{key, v})
	return v
}

// lookup is get for what is there.
func (r *ring[K, V]) lookup(key K) V { return r.by[key].Value.(ringEntry[K, V]).value }

// turn gives the value whose turn it is among those that may have one, and puts
// it behind all others.
func (r *ring[K, V]) turn(may func(K) bool) (key K, value V, ok bool) {
	for e := r.order.Front(); e != nil; e = e.Next() {
		if s := e.Value.(ringEntry[K, V]); may(s.key) {
			r.order.MoveToBack(e)
			return s.key, s.value, true
		}
	}
	return key, value, false
}

func (r *ring[K, V]) has(key K) bool { return r.by[key] != nil }

func (r *ring[K, V]) drop(key K) {
	r.order.Remove(r.by[key])
	delete(r.by, key)
}

func (r *ring[K, V]) len() int { return len(r.by) }
