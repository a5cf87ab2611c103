package packages

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync"
	"time"
)

const (
	sizeInterval = time.Second // between two looks at a folder that another program fills
	sizeShare    = 10          // a look takes at most this part of the time
)

// reportSize reports the size of a folder that another program fills, at most once per
// second, until the returned function is called.
func reportSize(ctx context.Context, dir string, report func(bytes int64)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for pause := sizeInterval; sleep(ctx, pause) == nil; {
			begun := time.Now()
			size, _ := folderSize(ctx, dir)
			if ctx.Err() == nil && size > 0 {
				report(size)
			}
			pause = max(sizeInterval, sizeShare*time.Since(begun))
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// folderSize returns the bytes of the files below a folder. What vanishes meanwhile is
// left out.
func folderSize(ctx context.Context, dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes, err
}
