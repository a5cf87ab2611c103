package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// Format is the version of the records and of the messages between nodes that this program writes and knows.
//
// A change that an older program would misread raises it. Fields that it may ignore do not. A program knows the formats
// of the minor version before its own, and writes the format of the cluster, which is a record of its own: only once
// all members run the newer version may it be raised.
const Format = 1

// ErrFormat means that a record, a message or a cluster is of a newer version than this program.
var ErrFormat = errors.New("its format is newer than this version of gatehouse knows; install the newer version on this " +
	"node")

// CheckFormat returns an error that wraps ErrFormat if a format is not known. 0 is that of versions that wrote none,
// which is 1.
func CheckFormat(what string, format int) error {
	if format <= Format {
		return nil
	}
	return fmt.Errorf("%s has format %d, and %d is the newest that is known: %w", what, format, Format, ErrFormat)
}

// formatKey is the record of the cluster's format among the members.
const formatKey = "format"

// checkCluster refuses a cluster whose format this program does not know, and records its own in a new one.
func (n *Node) checkCluster(ctx context.Context, members *Bucket) error {
	r, err := members.Get(ctx, formatKey)
	if errors.Is(err, ErrNotFound) {
		if _, err = members.Create(ctx, formatKey, []byte(strconv.Itoa(Format))); errors.Is(err, ErrConflict) {
			r, err = members.Get(ctx, formatKey)
		} else {
			return err
		}
	}
	if err != nil {
		return err
	}
	format, err := strconv.Atoi(string(r.Value))
	if err != nil {
		return fmt.Errorf("the format %q of cluster %s is no number: %w", r.Value, n.opts.Name, errRefused)
	}
	if err := CheckFormat("cluster "+n.opts.Name, format); err != nil {
		return fmt.Errorf("%w: %w", err, errRefused)
	}
	return nil
}
