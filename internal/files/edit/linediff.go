package edit

// maxPairTable bounds the table of pairSequences, in cells of 4 bytes. Nothing
// pairs in longer sequences.
const maxPairTable = 4 << 20

// pairSequences pairs the elements of two sequences, of n and m elements, in
// order, so that the sum of the scores is as large as possible. It returns for
// each element of the second the index of its partner in the first, or -1.
// Elements with a score of 0 do not pair.
func pairSequences(n, m int, score func(i, j int) int) []int {
	of := make([]int, m)
	for j := range of {
		of[j] = -1
	}
	if n == 0 || m == 0 || n > maxPairTable/m {
		return of
	}
	w := m + 1
	best := make([]int32, (n+1)*w) // of a[i:] and b[j:]
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			v := max(best[(i+1)*w+j], best[i*w+j+1])
			if s := score(i, j); s > 0 {
				v = max(v, best[(i+1)*w+j+1]+int32(s))
			}
			best[i*w+j] = v
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		s := int32(score(i, j))
		switch v := best[i*w+j]; {
		case s > 0 && v == best[(i+1)*w+j+1]+s:
			of[j] = i
			i, j = i+1, j+1
		case v == best[(i+1)*w+j]:
			i++
		default:
			j++
		}
	}
	return of
}

// counterpart is what the file has for a line of old.
type counterpart struct {
	body   string
	blanks int // blank lines after it; -1 if that is not known
}

// sameLines returns for each line of new the line of old that it still is, or
// -1. file has the counterparts of the lines of old; it is nil if they are not
// known. A line of new may be written as old or as the file has it. Among equal
// lines it prefers the one that is followed by as many blank lines as the line
// of new.
func sameLines(old, new []line, file []counterpart) []int {
	of := make([]int, len(new))
	for i := range of {
		of[i] = -1
	}
	a, b := keysOf(old), keysOf(new)
	literal := func(i, j int) bool { return old[i].body == new[j].body || file != nil && file[i].body == new[j].body }
	same := func(i, j int) bool { return old[i].indent == new[j].indent && literal(i, j) }
	head, tail := ends(len(a), len(b), func(i, j int) bool { return same(i, j) && old[i].trail == new[j].trail })
	if len(a)-head-tail > maxPairTable/max(len(b)-head-tail, 1) {
		head, tail = ends(len(a), len(b), same)
	}
	for i := range head {
		of[i] = i
	}
	for i := range tail {
		of[len(b)-1-i] = len(a) - 1 - i
	}
	mid := pairSequences(len(a)-head-tail, len(b)-head-tail, func(i, j int) int {
		i, j = head+i, head+j
		if a[i] != b[j] {
			return 0
		}
		score := 16 * (1 + min(len(old[i].body), 16))
		if literal(i, j) {
			score += 8
		}
		if old[i].indent == new[j].indent {
			score += 4
		}
		if file != nil && file[i].blanks == blanksAfter(new, j) {
			score++
		}
		return score
	})
	for j, i := range mid {
		if i >= 0 {
			of[head+j] = head + i
		}
	}
	return of
}

// blanksAfter returns the number of blank lines after a line.
func blanksAfter(lines []line, i int) (n int) {
	for i++; i < len(lines) && lines[i].blank(); i++ {
		n++
	}
	return n
}

// ends returns how many elements two sequences of n and m elements begin and end
// with alike.
func ends(n, m int, same func(i, j int) bool) (head, tail int) {
	for head < min(n, m) && same(head, head) {
		head++
	}
	for tail < min(n, m)-head && same(n-1-tail, m-1-tail) {
		tail++
	}
	return head, tail
}

// keysOf returns the keys of lines.
func keysOf(lines []line) []string {
	keys := make([]string, len(lines))
	for i, l := range lines {
		keys[i] = fold(l.body)
	}
	return keys
}

// changedLines pairs, between the lines that stay, the lines of new that are
// changed lines of old. It completes of, the result of sameLines.
func changedLines(old, new []line, of []int) {
	o := 0
	for n := 0; n < len(new); {
		if of[n] >= 0 {
			o = of[n] + 1
			n++
			continue
		}
		end := n
		for end < len(new) && of[end] < 0 {
			end++
		}
		stop := len(old)
		if end < len(new) {
			stop = of[end]
		}
		pairChanged(old[o:stop], new[n:end], of[n:end], o)
		n = end
	}
}

// pairChanged pairs two runs of changed lines: in order if they have the same
// shape, else by likeness. base is the index of the first old line.
func pairChanged(old, new []line, of []int, base int) {
	if len(old) == len(new) && sameShape(old, new) {
		for i := range of {
			of[i] = base + i
		}
		return
	}
	score := func(i, j int) int { return likeness(old[i].body, new[j].body) }
	for j, i := range pairSequences(len(old), len(new), score) {
		if i >= 0 {
			of[j] = base + i
		}
	}
}

// sameShape reports whether two equally long runs have blank lines at the same
// places.
func sameShape(old, new []line) bool {
	for i := range old {
		if old[i].blank() != new[i].blank() {
			return false
		}
	}
	return true
}

// likeness returns how much of two lines is equal, in hundredths. It returns 0
// for less than half.
func likeness(a, b string) int {
	if a == "" || b == "" {
		return 0
	}
	head, tail := common(a, b)
	n := 200 * (head + tail) / (len(a) + len(b))
	if n < 50 {
		return 0
	}
	return n
}
