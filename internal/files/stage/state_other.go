//go:build !linux

package stage

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

func fileClock() time.Time                    { return time.Now() }
func stateOf(*os.Root, string) (State, error) { return State{}, errors.ErrUnsupported }
func dress(*os.File, State) error             { return errors.ErrUnsupported }
func makePipe(*os.Root, string, uint32) error { return errors.ErrUnsupported }
func linkTime(*os.Root, string, int64) error  { return errors.ErrUnsupported }
func exchange(_ *os.Root, a, b string) error  { return errors.ErrUnsupported }
func moveNew(_ *os.Root, a, b string) error   { return errors.ErrUnsupported }
func clone(*os.File, *os.File) error          { return errors.ErrUnsupported }
func mountsWithin(string) string              { return "" }
func (s State) sameFile(o State) bool         { return s.Ino != 0 && s.Ino == o.Ino }
func giveTo(string, fs.FileInfo)              {}
func sizeOf(string) int64                     { return 0 }
func syncFileSystem(string) error             { return errors.ErrUnsupported }

func readDir(*os.File) ([]fs.DirEntry, error) { return nil, errors.ErrUnsupported }

func attributesOf(*os.File) (map[string][]byte, marks, error) {
	return nil, marks{}, errors.ErrUnsupported
}
