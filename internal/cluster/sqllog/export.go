package sqllog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"gatehouse/internal/cluster"
)

// ErrNotEmpty means that a log has changes already.
var ErrNotEmpty = errors.New("the cluster has rows of its own")

// records returns the log of a name without a file.
func records(ctx context.Context, n *cluster.Node, name string) (*Log, error) {
	l := &Log{node: n, name: name, after: shortenAfter, kept: keptEntries, part: partSize, most: MaxChange}
	var err error
	if l.bucket, err = n.Bucket(ctx, name, cluster.BucketOptions{}); err != nil {
		return nil, err
	}
	l.copies, err = n.Bucket(ctx, name+"-copy", cluster.BucketOptions{})
	return l, err
}

// Export returns the statements that make an empty file what the log has, and the position of the last change.
func Export(ctx context.Context, n *cluster.Node, name string) (statements []string, at uint64, err error) {
	l, err := records(ctx, n, name)
	if err != nil {
		return nil, 0, err
	}
	for {
		statements, at, err = l.export(ctx)
		if !errors.Is(err, errShortened) {
			return statements, at, err
		}
	}
}

// errShortened means that a log was shortened while it was read.
var errShortened = errors.New("it was shortened meanwhile")

func (l *Log) export(ctx context.Context) (statements []string, at uint64, err error) {
	c, err := l.readCopy(ctx)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return nil, 0, err
	}
	if err == nil {
		statements, err = l.readParts(ctx, partsOf(c.Position, c.ID), c.Parts)
		if errors.Is(err, cluster.ErrNotFound) {
			return nil, 0, errShortened
		}
		if err != nil {
			return nil, 0, err
		}
	}
	for at = c.Position; ; at++ {
		e, err := l.read(ctx, at+1)
		if errors.Is(err, cluster.ErrNotFound) {
			if now, err := l.readCopy(ctx); err == nil && now.Position > at {
				return nil, 0, errShortened
			}
			return statements, at, nil
		}
		if err != nil {
			return nil, 0, err
		}
		statements = append(statements, e.Statements...)
	}
}

// Import makes an empty log have one change, which consists of statements that Export returned. Nodes whose files are
// empty apply it as any other. The error wraps ErrNotEmpty if the log has changes.
func Import(ctx context.Context, n *cluster.Node, name string, statements []string) error {
	if len(statements) == 0 {
		return nil
	}
	l, err := records(ctx, n, name)
	if err != nil {
		return err
	}
	if err := l.empty(ctx); err != nil {
		return err
	}
	won, err := l.append(ctx, 1, entry{ID: rand.Text(), Node: n.ID(), Statements: statements})
	if err == nil && !won {
		err = fmt.Errorf("%s: %w", name, ErrNotEmpty)
	}
	return err
}

// Empty returns an error that wraps ErrNotEmpty if a log has changes.
func Empty(ctx context.Context, n *cluster.Node, name string) error {
	l, err := records(ctx, n, name)
	if err != nil {
		return err
	}
	return l.empty(ctx)
}

func (l *Log) empty(ctx context.Context) error {
	_, err := l.origin(ctx)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = ErrNotEmpty
	}
	return fmt.Errorf("%s: %w", l.name, err)
}
