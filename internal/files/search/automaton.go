package search

import (
	"encoding/binary"
	"errors"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// An automaton tells which lines a regular expression may match, at about a
// gigabyte a second. It errs on one side only: a line it passes over does not
// match, a line it stops at has to be looked at again unless it is plain ASCII.
//
// It is a deterministic automaton over bytes whose states are made when they
// are first reached. Not safe for concurrent use; the program it runs is.
type automaton struct {
	prog   *program
	table  []int32 // by state and class; the next state, or one of the below
	states []state // by state / stride
	known  map[string]int32
	work   int

	set  sparse // scratch
	next []int32
	key  []byte
}

const (
	unknown = 0 // the transition has not been computed
	matched = 1 // the line matches whatever follows
	first   = 2 // the number of the first real state

	maxNodes  = 4000
	maxStates = 2000
	maxWork   = 4 << 20 // nodes looked at to make states; beyond, the expression is one that keeps making them
)

type state struct {
	nodes []int32 // before assertions are looked at
	begin bool    // of the line
	word  bool    // the last byte is of a word
}

// program is an expression as a nondeterministic automaton over bytes.
// Immutable.
type program struct {
	nodes   []node
	start   int32
	classes [256]uint8 // bytes that no node tells apart share a class
	sample  []byte     // a byte of each class
	stride  int32
}

type node struct {
	op   op
	look syntax.EmptyOp
	out  [2]int32 // of epsilon and look
	on   []edge   // of bytes
}

type edge struct {
	low, high byte
	to        int32
}

type op uint8

const (
	fail op = iota
	epsilon
	look
	onByte
	accept
)

var errTooBig = errors.New("the expression is too big for an automaton")

// newProgram compiles what syntax has compiled for runes.
func newProgram(p *syntax.Prog) (*program, error) {
	if len(p.Inst) > maxNodes {
		return nil, errTooBig
	}
	g := &program{nodes: make([]node, len(p.Inst)), start: int32(p.Start)}
	for i := range p.Inst {
		if err := g.compile(int32(i), &p.Inst[i]); err != nil {
			return nil, err
		}
	}
	g.classify()
	return g, nil
}

func (g *program) compile(i int32, in *syntax.Inst) error {
	n := &g.nodes[i]
	switch in.Op {
	case syntax.InstFail:
	case syntax.InstMatch:
		n.op = accept
	case syntax.InstAlt, syntax.InstAltMatch:
		n.op, n.out = epsilon, [2]int32{int32(in.Out), int32(in.Arg)}
	case syntax.InstCapture, syntax.InstNop:
		n.op, n.out = epsilon, [2]int32{int32(in.Out), int32(in.Out)}
	case syntax.InstEmptyWidth:
		n.op, n.look, n.out[0] = look, syntax.EmptyOp(in.Arg), int32(in.Out)
	default:
		n.op = onByte
		return g.runes(i, in)
	}
	return nil
}

// runes makes the edges of an instruction that takes one character.
func (g *program) runes(i int32, in *syntax.Inst) error {
	to := int32(in.Out)
	for _, r := range rangesOf(in) {
		if r[0] <= utf8.RuneError && utf8.RuneError <= r[1] {
			g.edge(i, 0x80, 0xFF, to) // any byte that is no character counts as that one
		}
		if err := g.span(i, r[0], r[1], to); err != nil {
			return err
		}
	}
	return nil
}

func rangesOf(in *syntax.Inst) (all [][2]rune) {
	switch in.Op {
	case syntax.InstRuneAny:
		return [][2]rune{{0, utf8.MaxRune}}
	case syntax.InstRuneAnyNotNL:
		return [][2]rune{{0, '\n' - 1}, {'\n' + 1, utf8.MaxRune}}
	}
	if len(in.Rune) == 1 {
		r := in.Rune[0]
		all = append(all, [2]rune{r, r})
		if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				all = append(all, [2]rune{f, f})
			}
		}
		return all
	}
	for i := 0; i+1 < len(in.Rune); i += 2 {
		all = append(all, [2]rune{in.Rune[i], in.Rune[i+1]})
	}
	return all
}

// span adds the characters from low to high as sequences of byte ranges.
func (g *program) span(i int32, low, high rune, to int32) error {
	for _, most := range [...]rune{0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF} {
		if low <= most && most < high {
			if err := g.span(i, low, most, to); err != nil {
				return err
			}
			low = most + 1
		}
	}
	if low >= 0xD800 && high <= 0xDFFF {
		return nil // not encoded
	}
	for shift := 1; shift < utf8.RuneLen(high); shift++ {
		m := rune(1)<<(6*shift) - 1
		if low&^m == high&^m {
			continue
		}
		if low&m != 0 {
			return errors.Join(g.span(i, low, low|m, to), g.span(i, (low|m)+1, high, to))
		}
		if high&m != m {
			return errors.Join(g.span(i, low, high&^m-1, to), g.span(i, high&^m, high, to))
		}
	}
	var a, b [utf8.UTFMax]byte
	n := utf8.EncodeRune(a[:], low)
	utf8.EncodeRune(b[:], high)
	for k := range n - 1 {
		if len(g.nodes) >= maxNodes {
			return errTooBig
		}
		g.nodes = append(g.nodes, node{op: onByte})
		then := int32(len(g.nodes) - 1)
		g.edge(i, a[k], b[k], then)
		i = then
	}
	g.edge(i, a[n-1], b[n-1], to)
	return nil
}

func (g *program) edge(i int32, low, high byte, to int32) {
	g.nodes[i].on = append(g.nodes[i].on, edge{low, high, to})
}

// classify groups the bytes that lead to the same everywhere.
func (g *program) classify() {
	var begins [257]bool
	mark := func(low, high byte) { begins[low], begins[int(high)+1] = true, true }
	mark('\n', '\n')
	mark('\r', '\r')
	mark('0', '9')
	mark('A', 'Z')
	mark('_', '_')
	mark('a', 'z')
	for i := range g.nodes {
		for _, e := range g.nodes[i].on {
			mark(e.low, e.high)
		}
	}
	class := -1
	for b := range 256 {
		if b == 0 || begins[b] {
			class++
			g.sample = append(g.sample, byte(b))
		}
		g.classes[b] = uint8(class)
	}
	g.stride = int32(len(g.sample))
}

func newAutomaton(p *program) *automaton {
	a := &automaton{prog: p}
	a.set.init(len(p.nodes))
	a.dropStates()
	return a
}

// dropStates drops all states but those every line begins with.
func (a *automaton) dropStates() {
	a.known = make(map[string]int32)
	a.states = make([]state, first, 64)
	a.table = make([]int32, first*a.prog.stride, 64*a.prog.stride)
	a.beginning()
}

// beginning is the state before a line.
func (a *automaton) beginning() int32 {
	a.next = append(a.next[:0], a.prog.start)
	return a.state(true, false)
}

// state finds or makes the state with the nodes in next.
func (a *automaton) state(begin, word bool) int32 {
	slices.Sort(a.next)
	a.key = append(a.key[:0], 0)
	if begin {
		a.key[0] |= 1
	}
	if word {
		a.key[0] |= 2
	}
	for _, n := range a.next {
		a.key = binary.LittleEndian.AppendUint16(a.key, uint16(n))
	}
	if s, ok := a.known[string(a.key)]; ok {
		return s
	}
	s := int32(len(a.states)) * a.prog.stride
	a.states = append(a.states, state{slices.Clone(a.next), begin, word})
	a.table = append(a.table, make([]int32, a.prog.stride)...)
	a.known[string(a.key)] = s
	return s
}

// stopAt looks for a line that may match, from a position at the beginning of
// one. It returns a position in that line or at its end, or -1. What follows the
// last newline is a line too. ok is false if the automaton had to give up.
func (a *automaton) stopAt(b []byte, from int) (at int, ok bool) {
	g := a.prog
	begin := a.beginning()
	s := begin
	table, classes := a.table, &g.classes
	for i := from; i < len(b); i++ {
		next := table[int(s)+int(classes[b[i]])]
		if next > matched {
			s = next
			continue
		}
		if next == unknown {
			if a.work > maxWork {
				return 0, false
			}
			if len(a.states) > maxStates {
				st := a.states[s/g.stride]
				a.dropStates()
				begin = a.beginning()
				a.next = append(a.next[:0], st.nodes...)
				s = a.state(st.begin, st.word)
			}
			next = a.follow(s, begin, classes[b[i]])
			table = a.table
		}
		if next == matched {
			return i, true
		}
		s = next
	}
	if len(b) > from && b[len(b)-1] == '\n' {
		return -1, true
	}
	if a.follow(s, begin, classes['\n']) == matched {
		return len(b), true
	}
	return -1, true
}

// follow computes where a class of bytes leads and notes it.
func (a *automaton) follow(s, begin int32, class uint8) int32 {
	g := a.prog
	st := a.states[s/g.stride]
	b := g.sample[class]
	word := isWord(b)
	to := int32(matched)
	if !a.reach(st, b, word) {
		to = begin
		if b != '\n' {
			to = a.state(false, word)
		}
	}
	a.table[s+int32(class)] = to
	return to
}

// reach fills next with the nodes a byte leads to, and reports whether the
// expression matches before that byte. Any node of the line may be where a
// match begins.
func (a *automaton) reach(st state, b byte, word bool) bool {
	holds := syntax.EmptyNoWordBoundary
	if word != st.word {
		holds = syntax.EmptyWordBoundary
	}
	if st.begin {
		holds |= syntax.EmptyBeginLine | syntax.EmptyBeginText
	}
	if b == '\n' || b == '\r' {
		holds |= syntax.EmptyEndLine | syntax.EmptyEndText
	}
	a.set.clear()
	for _, n := range st.nodes {
		a.set.addState(n)
	}
	a.next = a.next[:0]
	for i := 0; i < len(a.set.list); i++ {
		n := &a.prog.nodes[a.set.list[i]]
		switch n.op {
		case accept:
			return true
		case epsilon:
			a.set.addState(n.out[0])
			a.set.addState(n.out[1])
		case look:
			if n.look&^holds == 0 {
				a.set.addState(n.out[0])
			}
		case onByte:
			for _, e := range n.on {
				if e.low <= b && b <= e.high {
					a.next = append(a.next, e.to)
				}
			}
		}
	}
	a.work += len(a.set.list)
	a.next = append(a.next, a.prog.start)
	slices.Sort(a.next)
	a.next = slices.Compact(a.next)
	return false
}

func isWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_'
}

// sparse is a set of small numbers that is cleared in no time.
type sparse struct {
	list []int32
	at   []int32
}

func (s *sparse) init(n int) { s.at = make([]int32, n) }
func (s *sparse) clear()     { s.list = s.list[:0] }
func (s *sparse) addState(n int32) {
	if i := s.at[n]; int(i) < len(s.list) && s.list[i] == n {
		return
	}
	s.at[n] = int32(len(s.list))
	s.list = append(s.list, n)
}
