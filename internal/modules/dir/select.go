package dir

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

// item is a name with its sort key.
type item struct {
	key  int64 // smaller comes first: the negated size or time; 0 if sorted by name
	name string
}

func (a item) compare(b item) int {
	return cmp.Or(cmp.Compare(a.key, b.key), strings.Compare(a.name, b.name))
}

// selector finds the first entries of one directory in an order. It holds little
// more than those in memory, however many entries the directory has.
type selector struct {
	root   merged.Folder
	filter *walk.Filter
	globs  walk.Globs
	sort   string // "" or name, size, mtime

	total, ignored int
}

// first returns the first n entries that follow after, sorted.
func (ch *selector) first(ctx context.Context, after item, n int) ([]item, error) {
	d, err := merged.List(ch.root)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var least maxHeap
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			it := item{name: name}
			if !ch.accept(&it) || it.compare(after) <= 0 && after != (item{}) {
				continue
			}
			switch {
			case len(least) < n:
				heap.Push(&least, it)
			case it.compare(least[0]) < 0:
				least[0] = it
				heap.Fix(&least, 0)
			}
		}
		if err == io.EOF {
			slices.SortFunc(least, item.compare)
			return least, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// accept reports whether an entry belongs to the listing, counts it and sets its
// key. It calls stat only if the order needs it.
func (ch *selector) accept(it *item) bool {
	if ch.filter.Ignores(it.name, func() bool { return isDir(ch.root, it.name) }) {
		ch.ignored++
		return false
	}
	if !ch.globs.Match(it.name, it.name) {
		return false
	}
	ch.total++
	if ch.sort == "size" || ch.sort == "mtime" {
		info, err := ch.root.Lstat(it.name)
		switch {
		case err != nil:
		case ch.sort == "mtime":
			it.key = -info.ModTime().UnixNano()
		case info.Mode().IsRegular():
			it.key = -info.Size()
		}
	}
	return true
}

func isDir(root merged.Folder, name string) bool {
	info, err := root.Lstat(name)
	return err == nil && info.IsDir()
}

// maxHeap is a heap whose top is the last item in the order.
type maxHeap []item

func (h maxHeap) Len() int           { return len(h) }
func (h maxHeap) Less(i, j int) bool { return h[i].compare(h[j]) > 0 }
func (h maxHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *maxHeap) Push(x any)        { *h = append(*h, x.(item)) }
func (h *maxHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// encodeCursor encodes the last entry of a page: its name, which may be any
// bytes, and its key unless the order is by name. A checksum of both and of the
// order lets decodeCursor refuse any other text, which would silently begin at
// a wrong place.
func encodeCursor(it item, sort string) string {
	text := it.name
	if sort == "size" || sort == "mtime" {
		text = strconv.FormatInt(it.key, 36) + "/" + text
	}
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32([]byte(text), checksum(text, sort)))
}

func checksum(text, sort string) uint32 {
	if sort != "size" && sort != "mtime" {
		sort = "" // every other order is by name
	}
	return crc32.ChecksumIEEE([]byte(sort + "/" + text))
}

func decodeCursor(cursor, sort string) (it item, err error) {
	if cursor == "" {
		return it, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if n := len(b) - 4; err == nil && n > 0 {
		if it.name = string(b[:n]); binary.BigEndian.Uint32(b[n:]) != checksum(it.name, sort) {
			err = errors.New("its checksum is wrong")
		}
	} else if err == nil {
		err = errors.New("it is too short")
	}
	if err == nil && (sort == "size" || sort == "mtime") {
		key, name, _ := strings.Cut(it.name, "/")
		it.key, err = strconv.ParseInt(key, 36, 64)
		if it.name = name; name == "" {
			err = errors.New("it holds no name")
		}
	}
	if err != nil || len(it.name) > 4096 {
		return item{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "cursor is not one that dir_list returned",
			Next:    "Give next_cursor of the previous page with the same arguments, or no cursor for the first page.",
		}
	}
	return it, nil
}
