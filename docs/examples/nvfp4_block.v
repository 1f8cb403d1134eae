// NVFP4 without a global scale, as torchao computes it: 16 bfloat16 in, one E4M3 scale and 16 E2M1 codes out.
// Integers only: a division by 6 in eighths for the scale, and for the elements a reciprocal out of a table.

// The E4M3 code of amax / 6, nearest, ties to the even code (E4M3-2), held within 2^-6 and 448.
module scale_of (
    input  wire [14:0] amax,  // the bits of a bfloat16 without its sign
    output wire [7:0]  code
);
    wire [7:0] mantissa = {1'b1, amax[6:0]};
    // amax / 6 = mantissa / 192 * 2^(exponent - 129), and below 192 the significand is mantissa / 96.
    wire       upper    = mantissa >= 8'd192;
    wire [7:0] divisor  = upper ? 8'd24 : 8'd12;  // of eighths
    wire [7:0] eighths  = mantissa / divisor;
    wire [7:0] rest     = mantissa % divisor;
    wire       up       = (2 * rest > divisor) || (2 * rest == divisor && eighths[0]);
    // Exponent and fraction are one number, so that a fraction that is rounded up to 2 carries into the exponent.
    wire signed [12:0] bits = (amax[14:7] - 13'sd123 + upper) * 13'sd8 + eighths + up - 13'sd8;
    assign code = (amax > 15'h7f80) ? 8'h7f : (bits < 13'sd8) ? 8'h08 : (bits > 13'sd126) ? 8'h7e : bits[7:0];
endmodule

// The E2M1 code of x * (1 / scale), both roundings of float32, nearest, ties to the even code (E2M1-3).
module e2m1_of (
    input  wire [15:0] x,
    input  wire [7:0]  scale,
    output wire [3:0]  code
);
    reg [24:0] reciprocal;  // 2^24 / (1 + fraction / 8), nearest
    always @* case (scale[2:0])
        3'd0: reciprocal = 25'd16777216;  3'd1: reciprocal = 25'd14913081;
        3'd2: reciprocal = 25'd13421773;  3'd3: reciprocal = 25'd12201612;
        3'd4: reciprocal = 25'd11184811;  3'd5: reciprocal = 25'd10324441;
        3'd6: reciprocal = 25'd9586981;   3'd7: reciprocal = 25'd8947849;
    endcase
    wire [33:0] exact   = {1'b1, x[6:0]} * {9'd0, reciprocal};
    wire [3:0]  dropped = exact[32] ? 4'd9 : exact[31] ? 4'd8 : 4'd7;  // bits beyond the 24 of float32
    wire [33:0] half    = 34'd1 << (dropped - 1);
    wire [33:0] y       = ((exact + half - 1 + ((exact >> dropped) & 1)) >> dropped) << dropped;
    // |x| / scale = y * 2^(exponent of x - that of the scale - 151); a quarter has so many bits below it.
    wire signed [10:0] below   = 11'sd149 + scale[6:3] - x[14:7];
    wire [5:0]         shift   = (below < 25) ? 6'd25 : (below > 34) ? 6'd34 : below[5:0];
    wire [39:0]        quarter = 40'd1 << shift;

    // '>' leaves a tie at the lower code and '>=' lifts it; alternating lands each tie on the even one.
    wire [2:0] magnitude = (y >  1 * quarter) + (y >=  3 * quarter) + (y >  5 * quarter) + (y >= 7 * quarter)
                         + (y > 10 * quarter) + (y >= 14 * quarter) + (y > 20 * quarter);
    // torchao writes 2 where the scale is NaN. Zeros and subnormals are far below the first limit.
    assign code = (scale == 8'h7f) ? 4'd4 : {x[15], (x[14:7] == 0) ? 3'd0 : magnitude};
endmodule

module nvfp4_block (
    input  wire [16*16-1:0] x,      // element i in bits 16 i + 15 to 16 i
    output wire [7:0]       scale,
    output wire [16*4-1:0]  codes   // element i in bits 4 i + 3 to 4 i, so that element 0 is in the low nibble (PACK-1)
);
    integer i;
    reg [14:0] amax;  // magnitudes order like their bits, and NaN above all of them (BLK-2)
    always @* begin
        amax = 0;
        for (i = 0; i < 16; i = i + 1)
            if (x[16*i +: 15] > amax) amax = x[16*i +: 15];
    end
    scale_of of_block (.amax(amax), .code(scale));

    genvar n;
    generate
        for (n = 0; n < 16; n = n + 1) begin : element
            e2m1_of one (.x(x[16*n +: 16]), .scale(scale), .code(codes[4*n +: 4]));
        end
    endgenerate
endmodule

// Reads blocks as hexadecimal lines from +in=FILE, and writes scale and codes to +out=FILE.
module bench;
    reg  [8*256-1:0] from, to;
    reg  [16*16-1:0] x;
    wire [7:0]       scale;
    wire [16*4-1:0]  codes;
    integer          source, target;
    nvfp4_block block (.x(x), .scale(scale), .codes(codes));

    initial begin
        if (!$value$plusargs("in=%s", from) || !$value$plusargs("out=%s", to)) $finish;
        source = $fopen(from, "r");
        target = $fopen(to, "w");
        while ($fscanf(source, "%h\n", x) == 1) begin
            #1 $fdisplay(target, "%h %h", scale, codes);
        end
        $fclose(target);
        $finish;
    end
endmodule
