package rawjson

// Edit is one change of an object's top-level members.
type Edit struct {
	Key   string
	Value []byte // JSON text that replaces the value or is added last; nil removes the member
}

// Splice changes top-level members of an object and keeps the order and every byte of the others. Of
// two edits of one key the later applies. An empty obj counts as {}. The result shares no memory with
// obj, except that anything but an object is returned unchanged.
func Splice(obj []byte, edits ...Edit) []byte {
	if len(trimSpace(obj)) == 0 {
		obj = []byte("{}")
	}
	c := At(obj)
	if c.Kind() != '{' {
		return obj
	}
	c.Enter()
	s := splicer{src: obj, edits: edits, used: make([]bool, len(edits))}
	s.dst = append(make([]byte, 0, len(obj)+space(edits)), obj[:c.i]...)
	return s.splice(c)
}

func space(edits []Edit) (n int) {
	for _, e := range edits {
		n += len(e.Key) + len(e.Value) + 8
	}
	return n
}

type splicer struct {
	src, dst []byte
	edits    []Edit
	used     []bool // edits whose member exists
	wrote    bool   // dst contains a member
}

func (s *splicer) splice(c Cursor) []byte {
	tail := c.i // start of the white space after the last member
	for {
		start := s.afterComma(c.i)
		key, ok := c.Key()
		if !ok {
			break
		}
		at := skipSpace(s.src, c.i)
		if c.Value() == nil {
			break
		}
		s.member(key, s.src[start:at], s.src[at:c.i])
		tail = c.i
	}
	s.addNode()
	return append(s.dst, s.src[tail:]...)
}

// afterComma returns the position after the comma that ends the member before i.
func (s *splicer) afterComma(i int) int {
	if j := skipSpace(s.src, i); j < len(s.src) && s.src[j] == ',' {
		return j + 1
	}
	return i
}

// member writes a member: head is its name and all text up to its value.
func (s *splicer) member(key, head, value []byte) {
	if e := s.last(key); e >= 0 {
		s.used[e] = true
		if value = s.edits[e].Value; value == nil {
			return
		}
	}
	s.comma()
	s.dst = append(s.dst, head...)
	s.dst = append(s.dst, value...)
}

// addNode writes the members that did not exist.
func (s *splicer) addNode() {
	for i, e := range s.edits {
		if e.Value == nil || s.used[i] || s.superseded(i) {
			continue
		}
		s.comma()
		s.dst = AppendString(s.dst, e.Key)
		s.dst = append(s.dst, ':')
		s.dst = append(s.dst, e.Value...)
	}
}

func (s *splicer) superseded(i int) bool {
	for _, later := range s.edits[i+1:] {
		if later.Key == s.edits[i].Key {
			return true
		}
	}
	return false
}

func (s *splicer) comma() {
	if s.wrote {
		s.dst = append(s.dst, ',')
	}
	s.wrote = true
}

// last returns the edit of a key that applies, -1 if there is none.
func (s *splicer) last(key []byte) int {
	for i := len(s.edits) - 1; i >= 0; i-- {
		if s.edits[i].Key == string(key) {
			return i
		}
	}
	return -1
}
