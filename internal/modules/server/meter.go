package server

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/sensors"

	"gatehouse/tool"
)

// Sample is one measurement of the machine. A value that the system does not report
// is nil. Sizes are in bytes, rates in bytes per second, shares in percent.
type Sample struct {
	At      string   `json:"at"`
	General general  `json:"general"`
	CPU     *load    `json:"cpu,omitempty"`
	Memory  *memory  `json:"memory,omitempty"`
	Disk    *storage `json:"disk,omitempty"`
	Network *network `json:"network,omitempty"`
}

type general struct {
	Temperature *float64 `json:"temperature" doc:"highest temperature of a sensor, in degrees Celsius; null without a sensor"`
}

type load struct {
	Used   float64 `json:"percentageUsed"`
	Idle   float64 `json:"idle"`
	User   float64 `json:"userSpace"`
	Kernel float64 `json:"kernelSpace"`
	Wait   float64 `json:"wait"`
}

type memory struct {
	Percent   float64 `json:"percentageUsed"`
	Total     uint64  `json:"total"`
	Available uint64  `json:"available"`
	Used      uint64  `json:"used"`
	SwapTotal uint64  `json:"swapTotal"`
	SwapUsed  uint64  `json:"swapUsed"`

	// The size of compressed swap in memory before compression; nil without zram.
	ZRAMTotal     *uint64 `json:"zramTotal,omitempty"`
	ZRAMAvailable *uint64 `json:"zramAvailable,omitempty"`
	ZRAMUsed      *uint64 `json:"zramUsed,omitempty"`
}

type storage struct {
	Percent   float64 `json:"percentageUsed"`
	Used      uint64  `json:"used"`
	Available uint64  `json:"available"`
	Capacity  uint64  `json:"capacity"`
}

type network struct {
	Received     uint64  `json:"received" doc:"bytes since the boot, without loopback"`
	Sent         uint64  `json:"sent"`
	ReceivedRate float64 `json:"receivedRate"`
	SentRate     float64 `json:"sentRate"`
}

// A Meter measures the machine. It computes rates from the difference of counters
// since its previous measurement, at least minInterval ago. The zero value is
// ready to use. It is safe for concurrent use.
type Meter struct {
	Path string // of the measured file system; "" means the root

	mu   sync.Mutex
	last counters
}

// minInterval is the minimum time between two measurements that are compared.
const minInterval = 200 * time.Millisecond

// counters are the values that increase over time.
type counters struct {
	at       time.Time
	cpu      *cpu.TimesStat
	sent     uint64
	received uint64
}

// Measure returns a measurement. Without a previous one it waits for minInterval
// and measures twice. The error is that of ctx.
func (m *Meter) Measure(ctx context.Context) (Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.at.IsZero() {
		m.last = readCounters(ctx)
	}
	if rest := minInterval - time.Since(m.last.at); rest > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return Sample{}, context.Cause(ctx)
		}
	}
	before, now := m.last, readCounters(ctx)
	m.last = now
	s := Sample{
		At:      now.at.UTC().Format(time.RFC3339),
		CPU:     loadBetween(before.cpu, now.cpu),
		General: general{hottest(ctx)},
	}
	if took := now.at.Sub(before.at).Seconds(); now.received+now.sent > 0 {
		s.Network = &network{
			now.received, now.sent, rate(before.received, now.received, took), rate(before.sent, now.sent, took),
		}
	}
	s.Memory, s.Disk = memoryNow(ctx), m.diskNow(ctx)
	return s, ctx.Err()
}

func readCounters(ctx context.Context) counters {
	c := counters{at: time.Now()}
	if all, err := cpu.TimesWithContext(ctx, false); err == nil && len(all) > 0 {
		c.cpu = &all[0]
	}
	if all, err := net.IOCountersWithContext(ctx, true); err == nil {
		for _, i := range all {
			if i.Name != "lo" && !strings.HasPrefix(i.Name, "lo0") {
				c.received += i.BytesRecv
				c.sent += i.BytesSent
			}
		}
	}
	return c
}

// loadBetween returns the processor load between two measurements, or nil if it is
// not known.
func loadBetween(a, b *cpu.TimesStat) *load {
	if a == nil || b == nil {
		return nil
	}
	user, wait, idle := b.User+b.Nice-a.User-a.Nice, b.Iowait-a.Iowait, b.Idle-a.Idle
	kernel := b.System + b.Irq + b.Softirq + b.Steal - a.System - a.Irq - a.Softirq - a.Steal
	// some kernels decrease these counters at times
	user, kernel, wait, idle = max(user, 0), max(kernel, 0), max(wait, 0), max(idle, 0)
	all := user + kernel + wait + idle
	if all <= 0 {
		return nil
	}
	percent := func(x float64) float64 { return round(100 * x / all) }
	return &load{percent(user + kernel), percent(idle), percent(user), percent(kernel), percent(wait)}
}

func rate(before, now uint64, seconds float64) float64 {
	if now < before || seconds <= 0 { // an interface was removed
		return 0
	}
	return math.Round(float64(now-before) / seconds)
}

func round(x float64) float64 { return math.Round(10*x) / 10 }

func memoryNow(ctx context.Context) *memory {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil
	}
	out := &memory{Percent: round(m.UsedPercent), Total: m.Total, Available: m.Available, Used: m.Used}
	if s, err := mem.SwapMemoryWithContext(ctx); err == nil {
		out.SwapTotal, out.SwapUsed = s.Total, s.Used
	}
	if total, used, ok := zramOf(sysfs); ok {
		out.ZRAMTotal, out.ZRAMUsed, out.ZRAMAvailable = &total, &used, new(total-used)
	}
	return out
}

func (m *Meter) diskNow(ctx context.Context) *storage {
	path := m.Path
	switch {
	case path != "":
	case runtime.GOOS == "windows":
		path = `C:\`
	default:
		path = "/"
	}
	d, err := disk.UsageWithContext(ctx, path)
	if err != nil {
		return nil
	}
	return &storage{round(d.UsedPercent), d.Used, d.Free, d.Total}
}

// hottest returns the highest plausible temperature. It ignores 0 and extreme
// values, which sensors that are not connected report.
func hottest(ctx context.Context) *float64 {
	all, err := sensors.TemperaturesWithContext(ctx)
	if err != nil && len(all) == 0 {
		return nil
	}
	all = slices.DeleteFunc(
		all, func(t sensors.TemperatureStat) bool { return t.Temperature <= 0 || t.Temperature >= 150 },
	)
	if len(all) == 0 {
		return nil
	}
	hot := slices.MaxFunc(all, func(a, b sensors.TemperatureStat) int {
		return int(math.Copysign(1, a.Temperature-b.Temperature))
	}).Temperature
	hot = round(hot)
	return &hot
}

const metricsHelp = `Sizes are in bytes, rates in bytes per second. The processor load is in percent of the time since
the previous measurement, at least 0.2 seconds.

- disk is the file system of the host's data. disk_list lists all of them.
- The resource gatehouse:///public/serverInfo/metrics has the same values, updated every ten seconds; it supports
  subscriptions.
- Values that the system does not report are missing; temperature is null without a sensor.`

func (s *server) metrics(ctx context.Context, _ *tool.Call, _ struct{}) (Sample, error) {
	return s.cfg.Meter.Measure(ctx)
}
