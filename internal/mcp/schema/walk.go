package schema

import (
	"strconv"

	"gatehouse/internal/mcp/rawjson"
)

const (
	maxProblems = 5       // most problems that are reported for one value
	maxWork     = 4 << 20 // most steps of one walk, besides reading the text
)

// walker checks one text against nodes, in one pass and without decoding it. It is allocated on the
// stack. If the value fits, only filling in defaults allocates.
type walker struct {
	text         []byte
	cur          rawjson.Cursor
	formats      bool
	problems     []Problem
	budget       int  // steps that are left
	exhausted    bool // the budget was exceeded
	fill         bool
	defaultsSize int
	out          []byte // the text up to copied, with defaults
	copied       int
}

// done reports whether the walk can stop.
func (w *walker) done() bool { return w.exhausted || len(w.problems) >= maxProblems }

func (w *walker) addProblem(p Problem) {
	if !w.done() {
		w.problems = append(w.problems, p)
	}
}

// reportValue reports the value at a byte, which the node does not allow.
func (w *walker) reportValue(at int, n *node, got string) {
	v := w.at(at)
	if got == "" {
		got = describeValue(v)
	}
	w.addProblem(Problem{Path: pathAt(w.text, at), Expected: n.expected(), Got: got, Hint: hintFor(n, v)})
}

// at returns the value that starts at a byte.
func (w *walker) at(i int) []byte {
	c := rawjson.At(w.text[i:])
	return c.Value()
}

// charge subtracts steps from the budget. The walk ends if none is left.
func (w *walker) charge(steps int) {
	if w.budget -= steps; w.budget < 0 && !w.done() {
		w.exhausted = true
		w.problems = append(w.problems, costProblem())
	}
}

// value reads the next value and checks it.
func (w *walker) value(n *node) {
	kind := w.cur.Kind()
	at := w.cur.Offset()
	if n.never || kind == 0 || n.types != 0 && n.types&kinds(kind) == 0 {
		w.reportValue(at, n, "")
		w.cur.Value()
		return
	}
	switch kind {
	case '{':
		w.object(n, at)
	case '[':
		w.array(n, at)
	case '"':
		w.string(n, at, w.cur.Value())
	case '0':
		w.checkNumber(n, at, w.cur.Value())
	default:
		w.cur.Value()
	}
	if n.enum != nil {
		w.enum(n, at)
	}
}

func (w *walker) object(n *node, at int) {
	if len(n.props) == 0 && !n.closed && n.extra == nil {
		w.cur.Value()
		return
	}
	w.cur.Enter()
	var seen uint64 // bits of the first 64 members with a default that are present
	required, defaults, next, empty := 0, 0, 0, true
	for !w.done() {
		key, ok := w.cur.Key()
		if !ok {
			break
		}
		empty = false
		i := n.findProperty(key, next)
		if i < 0 {
			w.otherMember(n)
			continue
		}
		p := &n.props[i]
		next = i + 1
		if p.required {
			required++
		}
		if p.fill != nil {
			defaults++
			if i < 64 {
				seen |= 1 << i
			}
		}
		if p.declared {
			w.value(p.node)
		} else {
			w.otherMember(n)
		}
	}
	if required < n.required {
		w.reportMissing(n, at)
	}
	if w.fill && defaults < n.defaults && w.problems == nil {
		w.addDefaults(n, at, seen, empty)
	}
}

// otherMember reads the value of a member that is not among the properties.
func (w *walker) otherMember(n *node) {
	switch {
	case n.closed:
		w.cur.Kind() // moves to the value
		w.reportUnknown(n, w.cur.Offset())
		w.cur.Value()
	case n.extra != nil:
		w.value(n.extra)
	default:
		w.cur.Value()
	}
}

func (w *walker) reportUnknown(n *node, at int) {
	if w.done() {
		return
	}
	path := pathAt(w.text, at)
	w.addProblem(Problem{Path: path, Hint: hintUnknown(lastName(w.text, at), n.names())})
}

// reportMissing reports the required members that an object lacks.
func (w *walker) reportMissing(n *node, at int) {
	there := n.present(w.at(at))
	for i, p := range n.props {
		if p.required && !there[i] && !w.done() {
			w.addProblem(Problem{Path: joinPath(pathAt(w.text, at), p.name), Expected: p.node.expected()})
		}
	}
}

// present reports for each member of a node whether an object has it.
func (n *node) present(obj []byte) []bool {
	there := make([]bool, len(n.props))
	next := 0
	for key := range rawjson.Object(obj) {
		if i := n.findProperty(key, next); i >= 0 {
			there[i], next = true, i+1
		}
	}
	return there
}

// addDefaults copies the text up to the end of the object that was just read,
// and adds the defaults of missing members before its closing brace. seen says
// which of the first 64 members are present.
func (w *walker) addDefaults(n *node, at int, seen uint64, empty bool) {
	end := w.cur.Offset() - 1
	if w.out == nil {
		w.out = make([]byte, 0, len(w.text)+w.defaultsSize+8)
	}
	w.out = append(w.out, w.text[w.copied:end]...)
	w.copied = end
	var there []bool
	if len(n.props) > 64 {
		there = n.present(w.text[at:])
	}
	for i := range n.props {
		p := &n.props[i]
		if p.fill == nil || i < 64 && seen&(1<<i) != 0 || there != nil && there[i] {
			continue
		}
		if !empty {
			w.out = append(w.out, ',')
		}
		empty = false
		w.out = append(w.out, p.fill...)
	}
}

// filled returns the text with its defaults. It is the text itself if none was
// added.
func (w *walker) filled() []byte {
	if w.out == nil {
		return w.text
	}
	return append(w.out, w.text[w.copied:]...)
}

func (w *walker) array(n *node, at int) {
	if n.items == nil && n.minItems == 0 && n.maxItems < 0 {
		w.cur.Value()
		return
	}
	count := 0
	w.cur.Enter()
	for ; !w.done() && w.cur.More(); count++ {
		if n.items != nil {
			w.value(n.items)
		} else {
			w.cur.Value()
		}
	}
	if !w.done() && (count < n.minItems || n.maxItems >= 0 && count > n.maxItems) {
		w.reportValue(at, n, plural(count, "item"))
	}
}

func (w *walker) string(n *node, at int, v []byte) {
	if n.minLen > 0 || n.maxLen >= 0 {
		if l := rawjson.Length(v); l < n.minLen || n.maxLen >= 0 && l > n.maxLen {
			got := plural(l, "character")
			if l == 0 {
				got = `""`
			}
			w.reportValue(at, n, got)
			return
		}
	}
	if n.pattern != nil {
		w.charge(n.patternSize * len(v) / 64)
		if w.exhausted {
			return
		}
		if s, ok := rawjson.Bytes(v); !ok || !n.pattern.Match(s) {
			w.reportValue(at, n, "")
			return
		}
	}
	if w.formats && n.format != "" {
		if s, _ := rawjson.String(v); !hasFormat(s, n.format) {
			w.reportValue(at, n, "")
		}
	}
}

func (w *walker) checkNumber(n *node, at int, v []byte) {
	if n.types&(isInteger|isNumber) == isInteger && !rawjson.IsInteger(v) && !rawjson.Whole(v) {
		w.reportValue(at, n, "")
		return
	}
	if n.low != nil && n.low.compare(v) < 0 || n.high != nil && n.high.compare(v) > 0 {
		w.reportValue(at, n, "")
		return
	}
	if n.low != nil && n.low.open && n.low.compare(v) == 0 || n.high != nil && n.high.open && n.high.compare(v) == 0 {
		w.reportValue(at, n, "")
	}
}

// compare returns -1, 0 or 1 if a number is below, at or above the bound. It is
// exact if both fit an int64. Otherwise it compares as float64.
func (b *bound) compare(v []byte) int {
	if i, ok := rawjson.Int(v); ok && b.whole {
		switch {
		case i < b.exact:
			return -1
		case i > b.exact:
			return 1
		}
		return 0
	}
	f, _ := strconv.ParseFloat(string(v), 64) // Out of range it returns an infinity, which compares correctly.
	switch {
	case f < b.value:
		return -1
	case f > b.value:
		return 1
	}
	return 0
}

func (w *walker) enum(n *node, at int) {
	v := w.at(at)
	w.charge(n.tries)
	for _, e := range n.enum {
		if equalText(v, e) {
			return
		}
	}
	w.reportValue(at, n, "")
}
