package rawjson

// Salvage finds the ID of a JSON-RPC request in bytes that are not JSON, or that are read once and not
// kept. It examines only the members of the outermost object, and stores only a small part of any text.
// The zero value is ready to be written to.
type Salvage struct {
	depth   int // of the value that the next byte is part of
	began   bool
	quoted  bool
	escaped bool

	token []byte // of the outermost object: the text since the last separator
	key   string
	id    []byte
	call  bool // a method was found
	twice bool // two IDs were found
}

// mostToken is how much of a token is kept: more than any ID that is answered.
const mostToken = 1 << 10

// Write processes the next bytes. It always accepts all of them and returns no error.
func (s *Salvage) Write(p []byte) (int, error) {
	for _, c := range p {
		switch {
		case s.quoted:
			s.inString(c)
		case c == '"':
			s.quoted = true
			s.store(c)
		case c == '{' || c == '[':
			if s.depth == 0 && s.began {
				return len(p), nil // a second value
			}
			s.began = true
			if s.depth++; s.depth == 1 && c == '[' {
				s.depth++ // a batch itself has no ID
			}
		case c == '}' || c == ']':
			if s.depth == 1 {
				s.member()
			}
			s.depth = max(0, s.depth-1)
		case s.depth == 1 && c == ':':
			s.key, _ = String(s.token)
			s.token = s.token[:0]
		case s.depth == 1 && c == ',':
			s.member()
		case !isSpace(c):
			s.store(c)
		}
	}
	return len(p), nil
}

func (s *Salvage) inString(c byte) {
	s.store(c)
	switch {
	case s.escaped:
		s.escaped = false
	case c == '\\':
		s.escaped = true
	case c == '"':
		s.quoted = false
	}
}

func (s *Salvage) store(c byte) {
	if s.depth == 1 && len(s.token) <= mostToken {
		s.token = append(s.token, c)
	}
}

// member ends a member of the outermost object.
func (s *Salvage) member() {
	switch s.key {
	case "id":
		s.twice = s.id != nil
		s.id = append([]byte(nil), s.token...)
	case "method":
		s.call = true
	}
	s.key, s.token = "", s.token[:0]
}

// Request returns the ID of the request that was written, a string or a number in its JSON form. It
// returns nil if it found no ID, two IDs, or no method, because only a request is answered.
func (s *Salvage) Request() []byte {
	kind := Kind(s.id)
	if !s.call || s.twice || len(s.id) > mostToken || kind != '"' && kind != '0' || Check(s.id, 0) != nil {
		return nil
	}
	return s.id
}

// Repair replaces every lone surrogate in b by U+FFFD, in place, and returns their number. JSON's
// grammar allows them, and JavaScript writes them for strings that were cut inside a character; UTF-8
// cannot represent them.
func Repair(b []byte) (replaced int) {
	for i := 0; i+1 < len(b); {
		if b[i] != '\\' {
			i++
			continue
		}
		_, next := unescape(b, i)
		switch {
		case next > 0:
			i = next
		case b[i+1] == 'u' && hex4(b, i+2) >= 0:
			copy(b[i:], `\ufffd`)
			replaced++
			i += 6
		default:
			i += 2
		}
	}
	return replaced
}
