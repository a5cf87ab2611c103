package state

import (
	"slices"
	"strconv"
)

// Diff returns a patch that turns one value into another, the smallest of those it considers: equal elements at
// both ends of an array are kept, elements that fell off the beginning of an array are removed, and a container is
// replaced as a whole if that is shorter. It is empty if and only if the values are equal.
func Diff(old, new any) Patch {
	d := differ{}
	d.diff(old, new)
	return d.ops
}

// differ collects the operations of a patch.
type differ struct {
	ops  Patch
	path Pointer // the current position
	cost int     // approximate size of the encoded operations, in bytes
	old  int     // the same for the values that they replace or remove
	held int     // approximate memory of the changed objects, without their members
}

const (
	memberBytes = 48      // of an object's memory, for each member
	opBytes     = 28      // of an operation beside its path and value
	mostOld     = 1 << 24 // above which old values are not counted any more
)

func (d *differ) pathBytes() (n int) {
	for _, t := range d.path {
		n += len(t) + 1
	}
	return n
}

func (d *differ) push(k Kind, old, new any) {
	d.ops = append(d.ops, Op{k, slices.Clone(d.path), new})
	d.cost += opBytes + d.pathBytes()
	if k != Remove {
		d.cost += size(new, MaxPatch)
	}
	if k != Add {
		d.old += size(old, mostOld)
	}
}

// below runs f one level deeper.
func (d *differ) below(token string, f func()) {
	d.path = append(d.path, token)
	f()
	d.path = d.path[:len(d.path)-1]
}

func (d *differ) diff(old, new any) {
	if same(old, new) {
		return
	}
	before := *d
	switch a := old.(type) {
	case map[string]any:
		if b, ok := new.(map[string]any); ok {
			d.objects(a, b)
			d.orReplace(&before, old, new)
			return
		}
	case []any:
		if b, ok := new.([]any); ok {
			d.arrays(a, b)
			d.orReplace(&before, old, new)
			return
		}
	}
	d.push(Replace, old, new)
}

// orReplace replaces the whole value if that is shorter than the operations that were found since before.
func (d *differ) orReplace(before *differ, old, new any) {
	if len(d.ops) == len(before.ops) {
		return
	}
	limit := d.cost - before.cost
	whole := opBytes + d.pathBytes()
	if whole += size(new, limit); whole >= limit {
		return
	}
	clear(d.ops[len(before.ops):])
	d.ops, d.cost, d.old = d.ops[:len(before.ops)], before.cost, before.old
	d.push(Replace, old, new)
}

func (d *differ) objects(a, b map[string]any) {
	d.held += memberBytes * len(a)
	var removed, added []string
	for k := range a {
		if _, stays := b[k]; !stays {
			removed = append(removed, k)
		}
	}
	for k, new := range b {
		if old, was := a[k]; !was || !same(old, new) {
			added = append(added, k)
		}
	}
	slices.Sort(removed)
	slices.Sort(added)
	for _, k := range removed {
		d.below(k, func() { d.push(Remove, a[k], nil) })
	}
	for _, k := range added {
		old, was := a[k]
		if was {
			d.below(k, func() { d.diff(old, b[k]) })
		} else {
			d.below(k, func() { d.push(Add, nil, b[k]) })
		}
	}
}

func (d *differ) arrays(a, b []any) {
	head := 0
	for head < len(a) && head < len(b) && equal(a[head], b[head]) {
		head++
	}
	a, b = a[head:], b[head:]
	for len(a) > 0 && len(b) > 0 && equal(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if n := moved(a, b); n > 0 {
		for i := n - 1; i >= 0; i-- {
			d.below(strconv.Itoa(head+i), func() { d.push(Remove, a[i], nil) })
		}
		head, b, a = head+len(a)-n, b[len(a)-n:], nil
	}
	for i := range min(len(a), len(b)) {
		if !same(a[i], b[i]) {
			d.below(strconv.Itoa(head+i), func() { d.diff(a[i], b[i]) })
		}
	}
	for i := len(a) - 1; i >= len(b); i-- {
		d.below(strconv.Itoa(head+i), func() { d.push(Remove, a[i], nil) })
	}
	for i := len(a); i < len(b); i++ {
		d.below(strconv.Itoa(head+i), func() { d.push(Add, nil, b[i]) })
	}
}

// moved returns how many elements fell off the beginning of an array whose rest is the beginning of the new one,
// or 0 if none did.
func moved(a, b []any) int {
	looks := 4*len(a) + 256 // arrays with many equal elements would need quadratic time
	for n := 1; n < len(a) && looks > 0; n++ {
		rest := a[n:]
		if len(b) < len(rest) {
			continue
		}
		i := 0
		for i < len(rest) && equal(rest[i], b[i]) {
			i++
		}
		looks -= i + 1
		if i == len(rest) {
			return n
		}
	}
	return 0
}
