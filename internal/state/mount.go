package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Mount is a place in the tree with values of a Go type, which are stored as their JSON. Attach creates one. It is
// safe for concurrent use; changes are made one at a time.
type Mount[T any] struct {
	tree *Tree
	m    *mount
}

// Attach creates a mount at a pointer below /public or /private. A durable one has the last value in its log. The
// pointer has no value before the first change. The errors are ErrMount, ErrMounted, ErrSecret if T contains a
// secret and the place is public, ErrClosed, and those of the log.
func Attach[T any](ctx context.Context, t *Tree, at string, d Durability) (*Mount[T], error) {
	m, err := t.attach(ctx, at, d, reflect.TypeFor[T]())
	if err != nil {
		return nil, err
	}
	return &Mount[T]{t, m}, nil
}

// Get returns the value and its revision, or the zero value at 0 if nothing was ever written. The caller may
// change the value.
func (m *Mount[T]) Get() (v T, revision uint64, err error) {
	now := m.tree.now.Load()
	value, _ := m.m.at.lookup(now.root)
	if value == nil {
		return v, now.revisions[m.m], nil
	}
	v, err = decodeAs[T](value)
	return v, now.revisions[m.m], err
}

func decodeAs[T any](value any) (v T, err error) {
	b, err := encodeValue(value)
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(b, &v)
}

// Update changes the value if the mount is at the expected revision, and returns the new revision. f receives a
// copy of the value to change; it may run again, must not use the mount, and changes nothing if it returns an
// error. The error is f's, a *Conflict, ErrSecret, ErrValue, ErrClosed, or the log's, after which it is unknown
// whether the change was stored.
func (m *Mount[T]) Update(ctx context.Context, expected uint64, f func(*T) error) (uint64, error) {
	return m.tree.changeMount(ctx, m.m, expected, func(old any) (Patch, error) {
		v, err := decodeAs[T](old)
		if err == nil {
			err = f(&v)
		}
		if err != nil {
			return nil, err
		}
		now, err := valueOf(v)
		if err != nil {
			return nil, err
		}
		return Diff(old, now), nil
	})
}

// Set sets the value of the mount, whatever it was.
func (m *Mount[T]) Set(ctx context.Context, v T) (uint64, error) {
	return m.Update(ctx, Any, func(old *T) error { *old = v; return nil })
}

// Apply changes the value by a patch; the cost depends on the size of the change only. The result must still be a
// T.
func (m *Mount[T]) Apply(ctx context.Context, expected uint64, p Patch) (uint64, error) {
	return m.tree.changeMount(ctx, m.m, expected, func(old any) (Patch, error) {
		v, err := Apply(old, p)
		if err != nil {
			return nil, err
		}
		if _, err := decodeAs[T](v); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPatch, err)
		}
		return Diff(old, v), nil
	})
}

// Put sets a member of a mount of a map, without reading the others.
func Put[E any](ctx context.Context, m *Mount[map[string]E], key string, e E) error {
	return Merge(ctx, m, map[string]*E{key: &e})
}

// Drop removes a member of a mount of a map, if it exists.
func Drop[E any](ctx context.Context, m *Mount[map[string]E], key string) error {
	return Merge(ctx, m, map[string]*E{key: nil})
}

// Merge sets members of a mount of a map, and removes those that are nil, in one change.
func Merge[E any](ctx context.Context, m *Mount[map[string]E], members map[string]*E) error {
	values := make(map[string]any, len(members))
	for key, e := range members {
		if len(key) > MaxKey {
			return fmt.Errorf("%w: a name of %d bytes, at most %d", ErrValue, len(key), MaxKey)
		}
		if e == nil {
			continue
		}
		v, err := valueOf(*e)
		if err != nil {
			return err
		}
		values[key] = v
	}
	_, err := m.tree.changeMount(ctx, m.m, Any, func(old any) (Patch, error) {
		c, _ := old.(map[string]any)
		if c == nil && len(values) > 0 {
			return Diff(old, values), nil
		}
		var p Patch
		for key := range members {
			v, stays := values[key]
			switch was, there := c[key]; {
			case !there && stays:
				p = append(p, Op{Add, Pointer{key}, v})
			case there && !stays:
				p = append(p, Op{Remove, Pointer{key}, nil})
			case there && !equal(was, v):
				p = append(p, Op{Replace, Pointer{key}, v})
			}
		}
		return p, nil
	})
	return err
}

// Update changes the mount at a pointer, as Mount.Update does, for callers that do not know its type. f receives
// the value, which it must not change, and returns the new one.
func (t *Tree) Update(ctx context.Context, at string, expected uint64, f func(old any) (any, error)) (uint64, error) {
	m, err := t.mount(at)
	if err != nil {
		return 0, err
	}
	return t.changeMount(ctx, m, expected, func(old any) (Patch, error) {
		v, err := f(old)
		if err != nil {
			return nil, err
		}
		now, err := valueOf(v)
		if err != nil {
			return nil, err
		}
		return Diff(old, now), nil
	})
}

// changeMount is one transaction: it makes a patch of the current value and writes it through the log into the
// tree. If another process has changed the same log first, it starts again, unless a certain revision was
// expected.
func (t *Tree) changeMount(
	ctx context.Context, m *mount, expected uint64, f func(old any) (Patch, error),
) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if err := t.openMounts(ctx); err != nil {
			return 0, err
		}
		if expected != Any && expected != m.revision {
			return 0, &Conflict{m.name, m.revision}
		}
		p, err := f(m.value)
		if err != nil || len(p) == 0 {
			return m.revision, err
		}
		v, err := Apply(m.value, p)
		if err != nil {
			return 0, err
		}
		revision := m.revision + 1
		if m.log != nil {
			revision, err = m.log.Append(ctx, m.name, m.revision, p)
		}
		if _, late := errors.AsType[*Conflict](err); late {
			if err := t.catchUp(ctx, m); err != nil {
				return 0, err
			}
			continue
		}
		if err != nil {
			return 0, err
		}
		t.publish(m, revision, v)
		return revision, nil
	}
}

func (t *Tree) openMounts(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	return context.Cause(ctx)
}
